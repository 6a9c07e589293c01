/* Mounts an NFS export by FUSE, in user space: for machines whose kernel has no NFS.
 *
 *     cc nfs_mount.c -o nfs_mount $(pkg-config --cflags --libs fuse3 libnfs)
 *     nfs_mount 'nfs://127.0.0.1/runs?version=4&nfsport=22049' /mnt
 *
 * Nothing is cached here, one request is made after another, and locks are those of this machine alone. */

#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <nfsc/libnfs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PIECE 2048 /* libnfs 4.0 cannot write 4096 bytes at once by NFS 4 */

static struct nfs_context *nfs;
#define FILE_OF(info) ((struct nfsfh *)(uintptr_t)(info)->fh)

static int look(const char *path, struct stat *to, struct fuse_file_info *info) {
    struct nfs_stat_64 s;
    (void)info;
    int failed = nfs_lstat64(nfs, path, &s);
    if (failed) return failed;
    memset(to, 0, sizeof *to);
    to->st_ino = s.nfs_ino, to->st_mode = s.nfs_mode, to->st_nlink = s.nfs_nlink, to->st_uid = s.nfs_uid;
    to->st_gid = s.nfs_gid, to->st_size = s.nfs_size, to->st_blocks = s.nfs_blocks, to->st_blksize = 4096;
    to->st_atim.tv_sec = s.nfs_atime, to->st_mtim.tv_sec = s.nfs_mtime, to->st_ctim.tv_sec = s.nfs_ctime;
    to->st_atim.tv_nsec = s.nfs_atime_nsec, to->st_mtim.tv_nsec = s.nfs_mtime_nsec, to->st_ctim.tv_nsec = s.nfs_ctime_nsec;
    return 0;
}

static int list(const char *path, void *to, fuse_fill_dir_t fill, off_t at, struct fuse_file_info *info,
                enum fuse_readdir_flags flags) {
    struct nfsdir *dir;
    struct nfsdirent *one;
    (void)at, (void)info, (void)flags;
    int failed = nfs_opendir(nfs, path, &dir);
    if (failed) return failed;
    while ((one = nfs_readdir(nfs, dir))) fill(to, one->name, NULL, 0, 0);
    nfs_closedir(nfs, dir);
    return 0;
}

static int opened(const char *path, int flags, int mode, struct fuse_file_info *info) {
    struct nfsfh *file;
    int failed = nfs_open2(nfs, path, flags & ~(O_APPEND | O_NONBLOCK | O_CLOEXEC), mode, &file);
    info->fh = failed ? 0 : (uintptr_t)file;
    return failed;
}

static int open_file(const char *path, struct fuse_file_info *info) { return opened(path, info->flags, 0, info); }

static int create(const char *path, mode_t mode, struct fuse_file_info *info) {
    return opened(path, info->flags | O_CREAT, mode & 07777, info);
}

static int release(const char *path, struct fuse_file_info *info) {
    (void)path;
    nfs_close(nfs, FILE_OF(info));
    return 0;
}

static int read_file(const char *path, char *to, size_t size, off_t at, struct fuse_file_info *info) {
    (void)path;
    return nfs_pread(nfs, FILE_OF(info), at, size, to);
}

static int write_file(const char *path, const char *from, size_t size, off_t at, struct fuse_file_info *info) {
    (void)path;
    for (size_t done = 0; done < size;) {
        size_t left = size - done;
        int n = nfs_pwrite(nfs, FILE_OF(info), at + done, left < PIECE ? left : PIECE, (char *)from + done);
        if (n < 0) return n;
        done += n;
    }
    return size;
}

static int sync_file(const char *path, int data, struct fuse_file_info *info) {
    (void)path, (void)data;
    return nfs_fsync(nfs, FILE_OF(info));
}

static int cut(const char *path, off_t size, struct fuse_file_info *info) {
    (void)info;
    return nfs_truncate(nfs, path, size);
}

static int touch(const char *path, const struct timespec times[2], struct fuse_file_info *info) {
    struct timespec now;
    struct timeval both[2];
    (void)info;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < 2; i++) {
        const struct timespec *t = times && times[i].tv_nsec != UTIME_NOW ? &times[i] : &now;
        both[i].tv_sec = t->tv_sec, both[i].tv_usec = t->tv_nsec / 1000;
    }
    return nfs_utimes(nfs, path, both);
}

static int make_dir(const char *path, mode_t mode) { return nfs_mkdir2(nfs, path, mode & 07777); }
static int remove_dir(const char *path) { return nfs_rmdir(nfs, path); }
static int remove_file(const char *path) { return nfs_unlink(nfs, path); }
static int move(const char *from, const char *to, unsigned flags) {
    return flags ? -EINVAL : nfs_rename(nfs, from, to);
}
static int allow(const char *path, mode_t mode, struct fuse_file_info *info) {
    (void)info;
    return nfs_chmod(nfs, path, mode & 07777);
}

static void *begin(struct fuse_conn_info *about, struct fuse_config *how) {
    (void)about;
    how->hard_remove = 1, how->use_ino = 1, how->direct_io = 0;
    how->entry_timeout = how->attr_timeout = how->negative_timeout = 0;
    return NULL;
}

static const struct fuse_operations OPERATIONS = {
    .init = begin, .getattr = look, .readdir = list, .open = open_file, .create = create, .release = release,
    .read = read_file, .write = write_file, .fsync = sync_file, .truncate = cut, .utimens = touch, .mkdir = make_dir,
    .rmdir = remove_dir, .unlink = remove_file, .rename = move, .chmod = allow,
};

int main(int count, char **words) {
    if (count != 3) return fprintf(stderr, "nfs_mount URL DIRECTORY\n"), 2;
    nfs = nfs_init_context();
    struct nfs_url *url = nfs ? nfs_parse_url_dir(nfs, words[1]) : NULL;
    if (!url || nfs_mount(nfs, url->server, url->path)) return fprintf(stderr, "%s\n", nfs_get_error(nfs)), 1;
    char *options[] = {words[0], "-f", "-s", "-o", "subtype=nfs,fsname=nfs", words[2], NULL};
    return fuse_main(6, options, &OPERATIONS, NULL);
}
