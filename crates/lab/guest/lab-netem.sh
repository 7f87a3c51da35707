#!/bin/sh
# lab-netem A|B ARGS...: disturbs the packets that one end of the link sends, with the arguments of tc-netem(8), for example
# `lab-netem A loss 1% delay 2ms`. lab-netem A|B off: ends it. With mlx5 and EFA, the whole fabric is disturbed, independent of the
# end.
case "$1" in
A) ns=$LAB_NS_A dev=$LAB_NETDEV_A ;;
B) ns=$LAB_NS_B dev=$LAB_NETDEV_B ;;
*) set -- ;;
esac
if [ $# -lt 2 ]; then
    echo "usage: lab-netem A|B off | ARGS..." >&2
    exit 2
fi
shift
[ -e /dev/lab/hca ] && exec lab-hca netem "$@"
if [ "$*" = off ]; then
    $ns /usr/bin/tc qdisc del dev "$dev" root 2>/dev/null
    exit 0
fi
exec $ns /usr/bin/tc qdisc replace dev "$dev" root netem "$@"
