# Run in the bare guest: no libc and no other program, so the static `uverbs` stands alone.
set -e
uverbs devinfo
$LAB_NS_A uverbs pingpong rc -d "$LAB_DEV_A" -g "$LAB_GID_INDEX" -n 100 -c &
server=$!
sleep 2
$LAB_NS_B uverbs pingpong rc -d "$LAB_DEV_B" -g "$LAB_GID_INDEX" -n 100 -c "$LAB_TCP_HOST"
wait "$server"
echo "bare guest: 1 passed, 0 failed"
