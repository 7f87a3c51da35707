# Runs the static `uverbs` in the bare guest, which has no libc and no other programs than busybox.
set -e
uverbs devinfo
$LAB_NS_A uverbs pingpong rc -d "$LAB_DEV_A" -g "$LAB_GID_INDEX" -n 100 -c &
server=$!
# 0A is LISTEN, 4853 the port 18515.
until $LAB_NS_A grep -qE ':4853 [0-9A-F:]+ 0A' /proc/net/tcp /proc/net/tcp6; do
    # It must be running: a process that has exited has no /proc/PID/exe.
    [ -e /proc/$server/exe ]
    usleep 10000
done
$LAB_NS_B uverbs pingpong rc -d "$LAB_DEV_B" -g "$LAB_GID_INDEX" -n 100 -c "$LAB_TCP_HOST"
wait "$server"
echo "bare guest: 1 passed, 0 failed"
