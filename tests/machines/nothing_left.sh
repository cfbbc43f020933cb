# What the scripts of this folder source; they have $rank, the program of a rank, and fail().

# Nothing is left: no process of a rank, no name in /dev/shm.
nothing_left() {
  local left
  for _ in $(seq 50); do
    left=$(find /proc/[0-9]*/exe -maxdepth 0 -lname "$rank" 2>/dev/null || true)
    [[ -n $left ]] || break
    sleep 0.1
  done
  [[ -z $left ]] || fail "processes are left: $left"
  [[ -z $(find /dev/shm -name '*tessera*' 2>/dev/null) ]] || fail "names are left in /dev/shm"
}
