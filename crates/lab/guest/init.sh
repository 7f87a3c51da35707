#!/bin/busybox sh
# The first process of the guest: sets up the machine and two RDMA devices joined by a link, runs the command of
# this boot, and sends its status to the host. It uses three virtio-serial ports: `ctl` (lines to the
# host: "note TEXT", "up SECONDS", "fail TEXT", "exit STATUS"), `out` and `err` (the command's streams). With mlx5 and
# EFA devices there is a fourth, `hca`: see lab-hca.
export PATH=/usr/bin HOME=/root TERM=linux
. /lab/env

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm /dev/lab
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
chmod 1777 /tmp
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
hostname lab
ulimit -l unlimited
ulimit -c 0
echo 1 > /proc/sys/kernel/panic_on_oops

# The full image has ip and rdma of iproute2 in PATH. The bare image has them in another directory, which is removed
# when the links are up. They are always called by path, because this shell would use its built-in ip.
if [ -d /lab/setup ]; then
    run="/lab/setup/lib/ld-linux-x86-64.so.2 --library-path /lab/setup/lib"
    ip="$run /lab/setup/ip" rdma="$run /lab/setup/rdma"
else
    ip=/usr/bin/ip rdma=/usr/bin/rdma
fi

ctl() { echo "$*" > /dev/lab/ctl; }

# Without the control port the host gets no message: print it on the console and stop.
stop() {
    if [ -e /dev/lab/ctl ]; then ctl "fail $*"; else echo "lab: fail: $*" > /dev/console; fi
    sleep 2
    reboot -f
}

must() { "$@" > /lab/why 2>&1 || stop "$*: $(cat /lab/why)"; }

# wait_for WHAT COMMAND...: waits until the command succeeds. The limit is long, because every step of the boot may take
# many seconds on a busy host.
wait_for() {
    what=$1
    shift
    read -r now rest < /proc/uptime
    end=$((${now%%.*} + 100))
    until "$@"; do
        read -r now rest < /proc/uptime
        [ ${now%%.*} -gt $end ] && stop "no $what"
        usleep 10000
    done
}

must /sbin/modprobe virtio_pci
must /sbin/modprobe virtio_console

# The names of the ports arrive after the device, each in a separate message.
ports="ctl out err"
case $LAB_DEVICE in mlx5 | efa) ports="$ports hca" ;; esac
all_ports() {
    for port in /sys/class/virtio-ports/*; do
        [ -e "$port/name" ] && ln -sf "../${port##*/}" "/dev/lab/$(cat "$port/name")"
    done
    for name in $ports; do
        [ -e /dev/lab/$name ] || return 1
    done
}
wait_for "virtio-serial ports" all_ports

ctl "note kernel $(uname -r), init after $(cut -d' ' -f1 /proc/uptime) s"
must $ip link set lo up

# The kernel fills the GID tables a little later.
gid_is() { [ "$(cat /sys/class/infiniband/$1/ports/1/gids/$LAB_GID_INDEX 2>/dev/null)" = "$2" ]; }
wait_gid() { wait_for "gid $LAB_GID_INDEX of $1 that is $2" gid_is $1 $2; }

# Both ends belong to this host: ARP and packets between them pass only with these settings.
accept_local() {
    for dev in all v0 v1; do
        echo 0 > /proc/sys/net/ipv4/conf/$dev/rp_filter
        echo 1 > /proc/sys/net/ipv4/conf/$dev/accept_local
    done
}

setup_rxe() {
    for module in veth rdma_rxe ib_uverbs rdma_ucm; do must /sbin/modprobe $module; done
    /sbin/modprobe -q ib_umad
    if [ -n "$LAB_NS_A" ]; then
        # One network namespace for each end; the RDMA devices stay visible in all of them. A second link, c0 - c1,
        # carries traffic that must not depend on the first link, which tests take down or make lossy.
        must $rdma system set netns shared
        for n in 1 2; do
            must $ip netns add h$n
            must $ip -n h$n link set lo up
        done
        must $ip link add v0 netns h1 type veth peer name v1 netns h2
        must $ip link add c0 netns h1 type veth peer name c1 netns h2
        must $ip -n h1 addr add 10.0.0.1/24 dev v0
        must $ip -n h2 addr add 10.0.0.2/24 dev v1
        must $ip -n h1 addr add 10.0.1.1/24 dev c0
        must $ip -n h2 addr add 10.0.1.2/24 dev c1
        for dev in v0 c0; do must $ip -n h1 link set $dev up; done
        for dev in v1 c1; do must $ip -n h2 link set $dev up; done
        must nsenter --net=/run/netns/h1 $rdma link add rxe0 type rxe netdev v0
        must nsenter --net=/run/netns/h2 $rdma link add rxe1 type rxe netdev v1
    else
        must $ip link add v0 type veth peer name v1
        must $ip addr add 10.0.0.1/24 dev v0
        must $ip addr add 10.0.0.2/24 dev v1
        must $ip link set v0 up
        must $ip link set v1 up
        accept_local
        must $rdma link add rxe0 type rxe netdev v0
        must $rdma link add rxe1 type rxe netdev v1
    fi
    wait_gid rxe0 0000:0000:0000:0000:0000:ffff:0a00:0001
    wait_gid rxe1 0000:0000:0000:0000:0000:ffff:0a00:0002
}

# Both ends share a namespace: TCP goes through the loopback device, and only ARP over the link.
setup_siw() {
    for module in veth ib_uverbs rdma_ucm; do must /sbin/modprobe $module; done
    /sbin/modprobe -q libcrc32c
    must /sbin/insmod /lab/siw.ko
    rm /lab/siw.ko
    must $ip link add v0 type veth peer name v1
    must $ip addr add 10.0.0.1/24 dev v0
    must $ip addr add 10.0.0.2/24 dev v1
    must $ip link set v0 up
    must $ip link set v1 up
    accept_local
    must $rdma link add siw0 type siw netdev v0
    must $rdma link add siw1 type siw netdev v1
}

setup_mlx5() {
    export ip
    must sh /usr/bin/lab-mlx5-up
}

setup_efa() {
    must sh /usr/bin/lab-efa-up
}

# The network to the other VM.
if [ -n "$LAB_SIDE" ]; then
    must /sbin/modprobe virtio_net
    wait_for "network to the other VM" test -e /sys/class/net/eth0
    must $ip link set eth0 name wire
    must $ip addr add $LAB_ADDRESS/24 dev wire
    must $ip link set wire up
    hostname lab$LAB_SIDE
    printf '10.0.2.1 lab1\n10.0.2.2 lab2\n' >> /etc/hosts
fi

setup_$LAB_DEVICE
# The kernel booted on one CPU; qemu.rs explains why.
for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
    [ -e "$cpu" ] && echo 1 > "$cpu"
done
rm -rf /lab/setup
ctl "up $(cut -d' ' -f1 /proc/uptime)"

if [ -n "$LAB_SHELL" ]; then
    cd /root
    echo "The devices are in LAB_* (see env). Leave with exit." > /dev/ttyS1
    setsid sh -c 'exec sh -i </dev/ttyS1 >/dev/ttyS1 2>&1'
    ctl "exit 0"
    sleep 2
    reboot -f
fi

# The streams go through pipes, because a port can be open only once and programs may open /dev/stderr again.
mkfifo /lab/out /lab/err
cat /lab/out > /dev/lab/out &
out=$!
cat /lab/err > /dev/lab/err &
err=$!
/bin/sh /lab/command </dev/null >/lab/out 2>/lab/err &
wait $!
status=$?
# All output must reach the host, which may take long on a busy host. A process that the command left running keeps the
# pipes open, so it is killed after two seconds.
kill_others() {
    for fd in /proc/[0-9]*/fd/*; do
        case $(readlink "$fd") in
        /lab/out | /lab/err) ;;
        *) continue ;;
        esac
        pid=${fd#/proc/}
        pid=${pid%%/*}
        [ "$pid" = $out ] || [ "$pid" = $err ] || kill -9 "$pid"
    done 2>/dev/null
}
{ sleep 2; kill_others; } &
wait $out $err
ctl "exit $status"
sleep 2
reboot -f
