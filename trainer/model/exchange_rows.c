/* exchange_rows.c: how many rows a round of an exchange has, and how many rounds there can be. It
 * is a separate file because lora.c, which exchange_rounds.c calls, needs the number too. */
#include "trainer/model/exchange_rounds.h"

/* R over a rank's own slots. With even routing an owner receives as many rows as a rank has slots;
 * with room for a quarter more, the usual unevenness still needs only one round. */
enum { ROOM_NUMERATOR = 5, ROOM_DENOMINATOR = 4 };

int64_t exchange_rows_for(int64_t slots)
{
    return (slots * ROOM_NUMERATOR + ROOM_DENOMINATOR - 1) / ROOM_DENOMINATOR;
}

int64_t exchange_rounds_most(const text_dims *dims, int64_t ranks, int64_t slots)
{
    const int64_t own = dims->experts / ranks, of_token = own < dims->top_k ? own : dims->top_k;
    const int64_t rows = slots / dims->top_k * of_token * ranks, room = exchange_rows_for(slots);
    return (rows + room - 1) / room;
}

int64_t exchange_rows(const shape *sizes)
{
    return exchange_rows_for(sizes->cap.tokens * sizes->ranks->expert_tensor *
                             sizes->dims->text.top_k);
}
