/* Preloaded into a process: locks of files below $NO_LOCKS fail, as on a Lustre without flock, and so does memory that
   processes share through such files. Compiled by tests/monitor/store/test_network.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int below(int fd) {
  char link[64], path[4096];
  const char *top = getenv("NO_LOCKS");
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (!top || n < 0) return 0;
  path[n] = 0;
  return strncmp(path, top, strlen(top)) == 0;
}

static int asked(const char *name, int fd, int command, void *argument) {
  int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, name);
  int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
  if (locks && below(fd)) {
    errno = ENOSYS;
    return -1;
  }
  return real(fd, command, argument);
}

int fcntl(int fd, int command, ...) {
  va_list more;
  va_start(more, command);
  void *argument = va_arg(more, void *);
  va_end(more);
  return asked("fcntl", fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
  va_list more;
  va_start(more, command);
  void *argument = va_arg(more, void *);
  va_end(more);
  return asked("fcntl64", fd, command, argument);
}

static void *mapped(const char *name, void *at, size_t size, int may, int flags, int fd, off_t from) {
  void *(*real)(void *, size_t, int, int, int, off_t) = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, name);
  if (fd >= 0 && (flags & MAP_SHARED) && below(fd)) {
    errno = ENODEV;
    return MAP_FAILED;
  }
  return real(at, size, may, flags, fd, from);
}

void *mmap(void *at, size_t size, int may, int flags, int fd, off_t from) {
  return mapped("mmap", at, size, may, flags, fd, from);
}

void *mmap64(void *at, size_t size, int may, int flags, int fd, off_t from) {
  return mapped("mmap64", at, size, may, flags, fd, from);
}
