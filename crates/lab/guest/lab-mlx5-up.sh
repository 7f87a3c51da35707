#!/bin/sh
# lab-mlx5-up: loads the drivers of the two mlx5 devices, waits for the devices, and gives their ports addresses. At boot,
# and again after drivers or devices were removed; existing addresses are kept.
ip=${ip:-/usr/bin/ip}
ib=/sys/class/infiniband

fail() {
    echo "lab-mlx5-up: $*" >&2
    dmesg | tail -n 25 >&2
    exit 1
}
# Drivers probe devices while modprobe runs, or soon after; events of the device then update tables and ports. The limit
# is long, because each step may take many seconds on a busy host.
wait_for() {
    what=$1
    shift
    read -r now rest < /proc/uptime
    end=$((${now%%.*} + 100))
    until "$@" 2>/dev/null; do
        read -r now rest < /proc/uptime
        [ ${now%%.*} -gt $end ] && fail "no $what"
        usleep 10000
    done
}

# A profile without a cache of memory keys. If the kernel uses its UMR queue, the default profile creates thousands of
# keys at boot, with one command each.
[ "$LAB_MKEYS" = umr ] && profile="prof_sel=1"
/sbin/modprobe mlx5_core $profile || fail "modprobe mlx5_core"
for module in mlx5_ib ib_uverbs rdma_ucm; do /sbin/modprobe $module || fail "modprobe $module"; done
/sbin/modprobe -q ib_umad
for dev in $LAB_DEV_A $LAB_DEV_B; do wait_for "device $dev" test -e $ib/$dev; done

netdev() { ls $ib/$1/device/net; }
has_netdev() { [ -n "$(netdev $1)" ]; }
# The GID of an IPv4 address 10.0.0.N.
gid_of() { printf '0000:0000:0000:0000:0000:ffff:0a00:%04x' "${1##*.}"; }
gid_is() { [ "$(cat $ib/$1/ports/1/gids/$LAB_GID_INDEX)" = "$2" ]; }

# A network device of this name, up, with this address.
address() {
    wait_for "network device of $1" has_netdev $1
    name=$(netdev $1)
    [ "$name" = "$2" ] || $ip link set "$name" name $2 || fail "cannot rename $name to $2"
    $ip addr replace $3/24 dev $2 || fail "cannot give $2 the address $3"
    # Room for the largest RDMA packet: 4096 bytes and its headers.
    $ip link set $2 mtu 4200 up || fail "cannot set $2 up"
}

if [ "$LAB_LINK" = roce ]; then
    address $LAB_DEV_A $LAB_NETDEV_A $LAB_IP_A
    address $LAB_DEV_B $LAB_NETDEV_B $LAB_IP_B
    # Both ends belong to this host: packets between them pass only with these settings, and ARP requests are not
    # answered.
    for dev in all $LAB_NETDEV_A $LAB_NETDEV_B; do
        echo 0 > /proc/sys/net/ipv4/conf/$dev/rp_filter
        echo 1 > /proc/sys/net/ipv4/conf/$dev/accept_local
        # The other guest of a pair gets one answer, from the device that has the address.
        echo 1 > /proc/sys/net/ipv4/conf/$dev/arp_ignore
    done
    mac() { cat /sys/class/net/$1/address; }
    $ip neigh replace $LAB_IP_B lladdr "$(mac $LAB_NETDEV_B)" dev $LAB_NETDEV_A nud permanent || fail "no neighbour B"
    $ip neigh replace $LAB_IP_A lladdr "$(mac $LAB_NETDEV_A)" dev $LAB_NETDEV_B nud permanent || fail "no neighbour A"
    wait_for "gid $LAB_GID_INDEX of $LAB_IP_A" gid_is $LAB_DEV_A "$(gid_of $LAB_IP_A)"
    wait_for "gid $LAB_GID_INDEX of $LAB_IP_B" gid_is $LAB_DEV_B "$(gid_of $LAB_IP_B)"
fi
for dev in $LAB_DEV_A $LAB_DEV_B; do wait_for "active port of $dev" grep -q ACTIVE $ib/$dev/ports/1/state; done
exit 0
