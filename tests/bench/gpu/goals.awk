# goals.awk: compares lines of `trainer bench step` with their goals: the useful MFU of the projection with each of
# -v goals=20.7,35,45, and the spread of the steps of every depth with 3 %.
/^steps: standard deviation / {
    spread = $4 + 0; slow = $0; sub(/.*mean; /, "", slow); slow += 0
    printf "goal: standard deviation under 3 %%: %.2f %%, %s\n", spread, (spread < 3) ? "reached" : "not reached"
    printf "goal: no step under 90 %% of the median's rate: %.1f %% are, %s\n", slow, (slow == 0) ? "reached" : "not reached"
}
/^projected: / { mfu = $0; sub(/.*mfu: /, "", mfu); mfu += 0; found = 1 } # the last one is from all depths
END {
    if (!found) { print "no projection was printed"; exit 1 }
    n = split(goals, goal, ",")
    for (i = 1; i <= n; i++)
        printf "goal: useful MFU above %s %%: projected %.2f %%, %s\n", goal[i], mfu, (mfu > goal[i] + 0) ? "reached" : "not reached"
}
