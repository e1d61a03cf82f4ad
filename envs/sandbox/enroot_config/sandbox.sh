# Read by `enroot start --conf` (envs/sandbox/enroot.py), which sets the sizes: the mounts of a sandbox besides its image.
mounts() {
    cat <<EOF
tmpfs /dev tmpfs x-create=dir,rw,nosuid,noexec,mode=755,size=64k
tmpfs /dev/shm tmpfs x-create=dir,rw,nosuid,nodev,noexec,mode=1777,size=${WINGSPAN_SHM_MB}m
tmpfs /tmp tmpfs x-create=dir,rw,nosuid,nodev,mode=1777,size=${WINGSPAN_DISK_MB}m
tmpfs /work tmpfs x-create=dir,rw,nosuid,nodev,mode=1777,size=${WINGSPAN_DISK_MB}m
tmpfs /sys tmpfs x-create=dir,ro,nosuid,nodev,noexec,size=4k
EOF
    for device in null zero full random urandom; do
        echo "/dev/${device} /dev/${device} none x-create=file,bind,rw,nosuid,noexec"
    done
    echo "none /dev none remount,ro,nosuid,noexec"
}
