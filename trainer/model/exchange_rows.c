/* exchange_rows.c: how many rows a round of an exchange has (exchange.h). */
#include "trainer/model/exchange_rounds.h"

/* Rows of a round over a rank's own slots, which is what an owner gets of even routing: with a
 * quarter more, the usual unevenness still takes one round. */
enum { ROOM_NUMERATOR = 5, ROOM_DENOMINATOR = 4 };

int64_t exchange_rows_for(int64_t slots)
{
    return (slots * ROOM_NUMERATOR + ROOM_DENOMINATOR - 1) / ROOM_DENOMINATOR;
}

int64_t exchange_rows(const shape *z)
{
    return exchange_rows_for(z->cap.tokens * z->ranks->expert_tensor * z->d->text.top_k);
}
