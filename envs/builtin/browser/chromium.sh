#!/bin/sh
# Runs $WINGSPAN_CHROMIUM with the arguments that Playwright gives: as nobody where we are root, behind
# bubblewrap where $WINGSPAN_BUBBLEWRAP is 1 (envs/builtin/browser/program.py), and without our environment.
set -eu
# An address bar that nobody sees has pages of its own, in a process that takes half of the CPU time of a start.
unseen=WebUIOmniboxPopup,WebUIOmniboxFullPopup,WebUIOmniboxAimPopup
profile=
for argument; do
    shift
    case $argument in
        --user-data-dir=*) profile=${argument#*=} ;;
        --disable-features=*) argument=$argument,$unseen ;; # of two such arguments Chromium reads the last
    esac
    set -- "$@" "$argument"
done
[ -d "$profile" ] || { echo "no --user-data-dir among: $*" >&2; exit 2; }
folder=$(dirname "$WINGSPAN_CHROMIUM")
set -- "$WINGSPAN_CHROMIUM" "$@"
if [ "$WINGSPAN_BUBBLEWRAP" = 1 ]; then
    # The profile comes last: it lies in /tmp.
    set -- bwrap --unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try \
        --die-with-parent --new-session --cap-drop ALL \
        --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin \
        --symlink usr/lib /lib --symlink usr/lib64 /lib64 --ro-bind-try /opt /opt \
        --ro-bind-try /etc/alternatives /etc/alternatives --ro-bind-try /etc/chromium /etc/chromium \
        --ro-bind-try /etc/chromium.d /etc/chromium.d --ro-bind-try /etc/fonts /etc/fonts \
        --ro-bind-try /etc/hosts /etc/hosts --ro-bind-try /etc/ld.so.cache /etc/ld.so.cache \
        --ro-bind-try /etc/nsswitch.conf /etc/nsswitch.conf --ro-bind-try /etc/passwd /etc/passwd \
        --ro-bind-try /etc/resolv.conf /etc/resolv.conf --ro-bind-try /etc/ssl /etc/ssl \
        --ro-bind-try /var/cache/fontconfig /var/cache/fontconfig \
        --proc /proc --dev /dev --tmpfs /tmp --ro-bind "$folder" "$folder" \
        --bind "$profile" "$profile" --chdir "$profile" "$@"
fi
if [ "$(id -u)" = 0 ]; then
    chown 65534:65534 "$profile"
    set -- setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --no-new-privs "$@"
fi
exec env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$profile" LANG=C.UTF-8 TZ=UTC "$@"
