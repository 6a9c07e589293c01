"""Run the tests of runs on networks on a real NFS server in user space, with its export mounted twice.

    sudo python .ci/nfs.py            Debian only; installs nothing, and needs no NFS in the kernel, but FUSE and root

The server is nfs-ganesha (NFS 3), the clients are `tests/monitor/store/nfs_mount.c`, on libnfs and FUSE. Their packages
are downloaded and unpacked into a temporary directory. Instead of rpcbind, which wants a user of its own, a few
lines here answer that every service is registered.
"""

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "nfs-ganesha", "nfs-ganesha-vfs", "libntirpc4.3", "libwbclient0", "liburcu8", "libnfsidmap1", "libgssrpc4",
    "libnfs13", "libnfs-dev", "libfuse3-3", "libfuse3-dev",
)  # fmt: skip
PORT, MOUNT_PORT = 22049, 22050
SOCKET = Path("/run/rpcbind.sock")

SERVER = """
NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {port}; MNT_Port = {mount_port}; Bind_addr = 127.0.0.1;
  Plugins_Dir = "{plugins}/"; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSV4 {{ Graceless = true; UseGetpwnam = true; RecoveryRoot = "{state}"; }}
EXPORT {{ Export_Id = 1; Path = "{export}"; Pseudo = "/runs"; Access_Type = RW; Squash = No_Root_Squash;
  SecType = sys; Protocols = 3; FSAL {{ Name = VFS; }} }}
"""


def unpacked(folder: Path) -> Path:
    """The packages' files."""
    folder.chmod(0o755)
    subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=folder, check=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    return folder / "root"


def _answered(call: bytes) -> bytes:
    """To a remote procedure call: accepted, and true, but for procedure 0, which has no result."""
    number, procedure = call[:4], call[20:24]
    return number + struct.pack(">5I", 1, 0, 0, 0, 0) + (b"" if procedure == bytes(4) else struct.pack(">I", 1))


def _talk(one: socket.socket) -> None:
    with one, one.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            reply = _answered(stream.read(struct.unpack(">I", head)[0] & 0x7FFFFFFF))
            one.sendall(struct.pack(">I", 0x80000000 | len(reply)) + reply)


def _accept(listening: socket.socket) -> None:
    while True:
        one, _ = listening.accept()
        threading.Thread(target=_talk, args=(one,), daemon=True).start()


def register_everything() -> None:
    """Answer as rpcbind would, where there is none."""
    if SOCKET.exists():
        return
    local, tcp = socket.socket(socket.AF_UNIX), socket.socket()
    local.bind(os.fspath(SOCKET))
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.bind(("127.0.0.1", 111))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 111))

    def datagrams() -> None:
        while True:
            call, sender = udp.recvfrom(65536)
            udp.sendto(_answered(call), sender)

    for one in (local, tcp):
        one.listen()
        threading.Thread(target=_accept, args=(one,), daemon=True).start()
    threading.Thread(target=datagrams, daemon=True).start()


def main() -> int:
    """Serve, mount, and test; returns how the tests ended."""
    held: list[subprocess.Popen[bytes]] = []
    mounts: list[Path] = []
    registered = not SOCKET.exists()
    with tempfile.TemporaryDirectory(prefix="equipoise-nfs-") as name:
        top = Path(name)
        root = unpacked(top)
        libraries = [root / "usr/lib/ganesha", *(root / x / "x86_64-linux-gnu" for x in ("usr/lib", "lib"))]
        env = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}
        plugins, export, state = libraries[1] / "ganesha", top / "export", top / "state"
        export.mkdir()
        state.mkdir()
        text = SERVER.format(port=PORT, mount_port=MOUNT_PORT, plugins=plugins, state=state, export=export)
        (top / "server.conf").write_text(text)
        client = top / "nfs_mount"
        source = ROOT / "tests/monitor/store/nfs_mount.c"
        found = ["-I", root / "usr/include/fuse3", "-I", root / "usr/include", *(f"-L{x}" for x in libraries)]
        linked = ["-l:libfuse3.so.3", "-lnfs"]
        subprocess.run(["cc", "-O1", "-D_FILE_OFFSET_BITS=64", source, "-o", client, *found, *linked], check=True)
        register_everything()
        try:
            log = top / "server.log"
            words = ["-F", "-L", log, "-f", top / "server.conf", "-p", top / "server.pid"]
            held.append(subprocess.Popen([root / "usr/bin/ganesha.nfsd", *words], env=env))
            url = f"nfs://127.0.0.1{export}?version=3&nfsport={PORT}&mountport={MOUNT_PORT}"
            for k in range(2):
                mount = top / f"machine {k}"
                mount.mkdir()
                for _ in range(60):
                    one = subprocess.Popen([client, url, mount], env=env, stderr=subprocess.DEVNULL)
                    time.sleep(2)
                    if mount.is_mount():
                        held.append(one)
                        mounts.append(mount)
                        break
                    one.wait()
                else:
                    sys.stderr.write(log.read_text() if log.exists() else "the server did not start")
                    return 1
            env = os.environ | {"EQUIPOISE_NFS": os.pathsep.join(map(str, mounts))}
            test = [sys.executable, "-m", "pytest", "-q", "tests/monitor/store/test_network.py", "-k", "nfs"]
            return subprocess.run([*test, *sys.argv[1:]], cwd=ROOT, env=env, check=False).returncode
        finally:
            for mount in mounts:
                subprocess.run([shutil.which("umount") or "umount", "-l", mount], check=False)
            for one in reversed(held):
                one.kill()
                one.wait()
            if registered:
                SOCKET.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
