# room.sh: how much travels to a GPU machine: the files of the tree and .gpu. prepare.sh sources it.

# Compresses machine code, from standard input. tar there unpacks it by xz or by Python, which both know this filter.
squeeze() { xz --x86 --lzma2=preset=9e,dict=64MiB; }

room_mib=40 # of 64 that may travel
spare_mib=2 # of them are left to the next changes

# The tree's files, each ended by a zero byte: all but .git and what .gitignore names. git itself may be missing, or refuse a
# tree of another owner.
tree_files() {
    find . \( -path ./.git -o -path ./.gpu -o -path './build*' -o -path ./outputs -o -name __pycache__ \) -prune -o \
        -type f ! -name '*.o' ! -name '*.pyc' -print0
}

tree_bytes() { tree_files | xargs -0 stat -c %s | awk '{ sum += $1 } END { printf "%.0f\n", sum }'; }

packed_bytes() { find .gpu -type f -printf '%s\n' 2>/dev/null | awk '{ sum += $1 } END { printf "%.0f\n", sum }'; }

# Says what travels, and fails if it leaves no room.
check_room() {
    local tree packed limit=$((room_mib - spare_mib))
    tree=$(tree_bytes) packed=$(packed_bytes)
    awk -v tree="$tree" -v packed="$packed" -v room=$room_mib 'BEGIN {
        mib = 1048576
        printf "travels: %.1f MiB of %d: the tree %.1f, .gpu %.1f\n", (tree + packed) / mib, room, tree / mib, packed / mib }'
    [ $((tree + packed)) -le $((limit * 1048576)) ] && return
    echo "prepare: more than $limit MiB would travel, and $spare_mib of $room_mib stay free: pack fewer photographs, or keep less in the tree" >&2
    return 1
}
