# The commands of the demo in the guest. $1 names the client program.
set -e
echo "== kernel $(uname -r): $LAB_DEV_A and $LAB_DEV_B, joined by a link"
if [ "$1" = uverbs ]; then
    uverbs devinfo
    client="uverbs pingpong rc"
else
    ibv_devinfo
    client=ibv_rc_pingpong
fi
# If both ends poll on two emulated CPUs, they wait for each other's time slices. With events (-e) they sleep.
for events in "" -e; do
    echo "== server: ibv_rc_pingpong $events of rdma-core on $LAB_DEV_A; client: $client $events on $LAB_DEV_B"
    $LAB_NS_A ibv_rc_pingpong -d "$LAB_DEV_A" -g "$LAB_GID_INDEX" -c $events >/tmp/server 2>&1 &
    server=$!
    until $LAB_NS_A grep -qE ':4853 [0-9A-F:]+ 0A' /proc/net/tcp /proc/net/tcp6; do
        # A process that has exited has no /proc/PID/exe.
        [ -e /proc/$server/exe ] || { cat /tmp/server; exit 1; }
        usleep 10000
    done
    $LAB_NS_B $client -d "$LAB_DEV_B" -g "$LAB_GID_INDEX" -c $events "$LAB_TCP_HOST"
    wait $server
    echo "== output of the server"
    cat /tmp/server
done
echo "== packets on the link"
lab-counters sent_pkts rcvd_pkts
