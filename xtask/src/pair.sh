# Runs in both of two VMs whose devices are on one fabric: LAB_SIDE 1 is the server, 2 the client. On a busy host, one VM may
# be up minutes before the other, so the client tries until the server is there.
fail() {
    echo "VM $LAB_SIDE: $*" >&2
    exit 1
}

# across WHAT COMMAND...: runs the command as the server of one client; the client runs it with the server's address.
across() {
    what=$1
    shift
    if [ $LAB_SIDE = 1 ]; then
        timeout 300 "$@" > /tmp/out 2>&1 || { cat /tmp/out; fail "$what: the server ended with $?"; }
    else
        tries=0
        until timeout 60 "$@" $LAB_PEER > /tmp/out 2>&1; do
            tries=$((tries + 1))
            [ $tries -gt 500 ] && { cat /tmp/out; fail "$what: the client"; }
            sleep 0.5
        done
    fi
    echo "VM $LAB_SIDE: $what: ok"
}

# RoCE needs the GID of the address.
[ $LAB_LINK = roce ] && gid="-g $LAB_GID_INDEX" gid_of_perftest="-x $LAB_GID_INDEX"
C="ibv_rc_pingpong -d $LAB_DEV_A $gid -n 200"
WE="uverbs pingpong rc -d $LAB_DEV_A $gid -n 200"
[ $LAB_SIDE = 1 ] && c_serves=$C we_serve=$WE || c_serves=$WE we_serve=$C
lid=$(cat /sys/class/infiniband/$LAB_DEV_A/ports/1/lid)
[ $LAB_LINK = roce ] || [ $((lid > 64)) = $((LAB_SIDE - 1)) ] || fail "the port has LID $lid"
across "C and C, rc" $C
across "uverbs and uverbs, rc" $WE
across "server C, client uverbs" $c_serves
across "server uverbs, client C" $we_serve
across "C and C, uc" ibv_uc_pingpong -d $LAB_DEV_A $gid -n 200
across "C and C, ud" ibv_ud_pingpong -d $LAB_DEV_A $gid -n 200
across "C and C, srq" ibv_srq_pingpong -d $LAB_DEV_A $gid -n 200
across "writes of 1 MiB" ib_write_bw -d $LAB_DEV_A $gid_of_perftest -s 1048576 -n 40 -F
across "reads of 64 KiB" ib_read_bw -d $LAB_DEV_A $gid_of_perftest -s 65536 -n 200 -F
tail -n 2 /tmp/out
