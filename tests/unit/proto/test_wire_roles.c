/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of roles: the file `allowed`, the refusal with the line to add, and what the peers of real
 * sockets may ask for, by their keys, over loopback, and as another user of this machine. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/row/frame.h"
#include "proto/wire/wire.h"
#include "proto/wire/wire_keys.h"
#include "tests/harness.h"

enum { WAIT_MS = 20000, NOBODY = 65534 };

#define KEY   "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7" /* of ZeroMQ's manual */
#define OTHER "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"

static status take_line(allowed_list *list, const char *line)
{
    return allowed_take_line(list, span_of(line, strlen(line)), "allowed", 7);
}

/* The roles that KEY has by these two lines. */
static unsigned roles_by(const char *first, const char *second)
{
    allowed_list list = {0};
    assert_ok(take_line(&list, first));
    assert_ok(take_line(&list, second));
    const allowed_key *found = allowed_find(&list, KEY);
    const unsigned roles = found ? found->roles : 0;
    allowed_done(&list);
    return roles;
}

static void test_allowed_take_line__says_roles(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        unsigned roles;
    } lines[] = {
        {KEY, WIRE_ROWS},
        {KEY " node2\n", WIRE_ROWS}, /* as keygen wrote it before there were roles */
        {KEY " node2 # the machine in the cellar\n", WIRE_ROWS},
        {KEY " node2 work\n", WIRE_WORK},
        {KEY "\tnode2\twork,control\r\n", WIRE_WORK | WIRE_CONTROL},
        {KEY " node2 rows, work ,control", WIRE_ROWS | WIRE_WORK | WIRE_CONTROL},
        {KEY " node2 trusted\n", WIRE_TRUSTED},
        {KEY " node2 rows,work,control,trusted", WIRE_GIVEN},
        {"# " KEY " node2 work", 0},
        {"  \n", 0},
        {"", 0},
        {OTHER " node2 work", 0},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_int_equal(roles_by(lines[i].line, "\n"), lines[i].roles);
    /* A role is given by adding a line. */
    assert_int_equal(roles_by(KEY " node2\n", KEY " node2 rows,work\n"), WIRE_ROWS | WIRE_WORK);
    assert_int_equal(roles_by(KEY " node2 work\n", KEY " x control\n"), WIRE_WORK | WIRE_CONTROL);
}

static void test_allowed_take_line__names_what_is_wrong(void **state)
{
    (void)state;
    allowed_list list = {0};
    char longer[200] = KEY " ";
    memset(longer + strlen(longer), 'n', WIRE_KEY_NAME);
    assert_fails(ST_CONFIG, take_line(&list, "not a key\n"), "allowed:7: expected a key of 40");
    assert_non_null(strstr(status_text(), "KEY NAME, then any of rows, work, control"));
    assert_fails(ST_CONFIG, take_line(&list, KEY "x node2"), "expected a key of 40");
    assert_fails(ST_CONFIG, take_line(&list, KEY " node2 wrok\n"), "there is no role \"wrok\"");
    assert_fails(ST_CONFIG, take_line(&list, KEY " node2 the cellar\n"), "# before a comment");
    assert_fails(ST_CONFIG, take_line(&list, KEY " node2 work control\033[2J"),
                 "\"control\\x1b[2J\"");
    assert_fails(ST_CONFIG, take_line(&list, KEY " work\n"), "where the key's name must");
    assert_fails(ST_CONFIG, take_line(&list, longer), "at most 63");
    assert_fails(ST_CONFIG, allowed_take_line(&list, span_of(KEY " a\0b", 44), "allowed", 7),
                 "control character");
    assert_fails(ST_CONFIG, allowed_take_line(&list, span_of(KEY " a work\0", 48), "allowed", 7),
                 "there is no role");
    assert_int_equal(list.count, 0);
    allowed_done(&list);
}

static void test_wire_roles__by_name(void **state)
{
    (void)state;
    unsigned roles = 99;
    char text[WIRE_ROLES_TEXT];
    assert_fails(ST_USAGE, wire_roles_read("work,", "--roles", &roles), "--roles \"work,\"");
    assert_fails(ST_USAGE, wire_roles_read("", "--roles", &roles), "rows, work, control");
    assert_fails(ST_USAGE, wire_roles_read("rows work", "--roles", &roles), "by commas");
    assert_int_equal(roles, 99);
    assert_ok(wire_roles_read("control,rows", "--roles", &roles));
    assert_int_equal(roles, WIRE_CONTROL | WIRE_ROWS);
    wire_roles_print(roles, text);
    assert_string_equal(text, "rows,control");
    wire_roles_print(WIRE_GIVEN | WIRE_STATUS, text);
    assert_string_equal(text, "rows,work,control,trusted");
}

/* A daemon's socket and a client's, whose messages are received with the client's roles. */
typedef struct pair {
    wire *net, *outside;
    wire_socket *bound, *client;
    wire_msg *message;
} pair;

static void open_pair(pair *ends, const char *endpoint, const char *keys, const char *client_keys)
{
    *ends = (pair){0};
    assert_ok(wire_new(&ends->net));
    assert_ok(wire_new(&ends->outside));
    assert_ok(wire_msg_new(&ends->message));
    if (keys) {
        assert_ok(wire_serve_keys(ends->net, keys));
        assert_ok(wire_use_keys(ends->outside, client_keys));
    }
    assert_ok(wire_bind(ends->net, endpoint, &(wire_limits){.only_user = true}, &ends->bound));
}

static void close_pair(pair *ends)
{
    wire_close(&ends->client);
    wire_close(&ends->bound);
    wire_msg_free(&ends->message);
    wire_free(&ends->outside);
    wire_free(&ends->net);
}

static wire_peer hear(pair *ends)
{
    wire_peer from;
    wire_wait wait = {.socket = ends->bound};
    assert_ok(wire_poll(&wait, 1, WAIT_MS));
    assert_ok(wire_recv(ends->bound, WAIT_MS, &from, ends->message));
    return from;
}

/* Connects if the client has not, says something, and returns who said it. */
static wire_peer say(pair *ends, const char *endpoint)
{
    if (!ends->client)
        assert_ok(wire_connect(ends->outside, endpoint, &ends->client));
    assert_ok(wire_send_json(ends->client, NULL, KIND_BYE, 0, "{}", 2));
    return hear(ends);
}

static void append_allowed(const char *keys, const char *text)
{
    char path[500];
    snprintf(path, sizeof path, "%s/allowed", keys);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* What a key may do comes with each of its messages, by the list as it was read last. */
static void test_wire_may__by_key(void **state)
{
    (void)state;
    char *folder = harness_temp(), keys[300], client[320], endpoint[64], line[200], refused[200];
    pair ends;
    snprintf(keys, sizeof keys, "%s/k", folder);
    snprintf(client, sizeof client, "%s/node2", keys);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", harness_port(NULL));
    assert_ok(wire_keys_make(keys, NULL, 0));
    assert_ok(wire_keys_make(keys, "node2", WIRE_ROWS));
    assert_fails(ST_USAGE, wire_keys_make(keys, "work", WIRE_ROWS), "not a role's");
    open_pair(&ends, endpoint, keys, client);
    wire_peer peer = say(&ends, endpoint);
    assert_int_equal(peer.roles, WIRE_ROWS);
    assert_int_equal(strlen(peer.key), WIRE_KEY_TEXT - 1);
    assert_string_equal(peer.key_name, "node2");
    assert_ok(wire_may(&peer, WIRE_ROWS, "peer 7"));
    snprintf(line, sizeof line, "(SIGHUP): %s node2 rows,work", peer.key);
    assert_fails(ST_CONFIG, wire_may(&peer, WIRE_WORK, "peer 7"), line);
    assert_non_null(strstr(status_text(), "peer 7: this key does not have the role work."));
    assert_fails(ST_CONFIG, wire_may(&peer, WIRE_STATUS, "peer 7"), "the role control.");

    append_allowed(keys, "not a key\n");
    assert_fails(ST_CONFIG, wire_reload_keys(ends.net), "allowed:3: expected a key");
    peer = say(&ends, endpoint);
    assert_int_equal(peer.roles, WIRE_ROWS); /* a broken list changes nothing */
    snprintf(refused, sizeof refused, "%s/allowed", keys);
    assert_int_equal(unlink(refused), 0);
    append_allowed(keys, line + strlen("(SIGHUP): "));
    assert_ok(wire_reload_keys(ends.net));
    peer = say(&ends, endpoint);
    assert_ok(wire_may(&peer, WIRE_WORK, "peer 7"));
    assert_fails(ST_CONFIG, wire_may(&peer, WIRE_CONTROL, "peer 7"), "node2 rows,work,control");

    /* Who judges rows may make them. */
    char trusted[sizeof line + 32];
    snprintf(trusted, sizeof trusted, "%s node2 trusted\n", peer.key);
    assert_int_equal(unlink(refused), 0);
    append_allowed(keys, trusted);
    assert_ok(wire_reload_keys(ends.net));
    peer = say(&ends, endpoint);
    assert_int_equal(peer.roles, WIRE_TRUSTED | WIRE_WORK);
    assert_ok(wire_may(&peer, WIRE_TRUSTED, "peer 7"));
    assert_ok(wire_may(&peer, WIRE_WORK, "peer 7"));
    assert_fails(ST_CONFIG, wire_may(&peer, WIRE_ROWS, "peer 7"), "the role rows.");

    assert_int_equal(unlink(refused), 0);
    append_allowed(keys, "# no one\n");
    assert_ok(wire_reload_keys(ends.net));
    peer = say(&ends, endpoint);
    assert_int_equal(peer.roles, 0); /* it is removed, and may begin nothing new */
    assert_fails(ST_CONFIG, wire_may(&peer, WIRE_ROWS, "peer 7"), " NAME rows");
    close_pair(&ends);
    harness_remove(&folder);
}

static void may_read(const char *keys, const char *says)
{
    allowed_list list = {0};
    const status st = allowed_read(keys, "", &list);
    if (says)
        assert_fails(ST_CONFIG, st, says);
    else
        assert_ok(st);
    allowed_done(&list);
}

/* A list that another user could change is refused: by its mode, its owner, or its folder. */
static void test_allowed_read__refuses_a_list_that_others_may_write(void **state)
{
    (void)state;
    char *folder = harness_temp(), keys[300], file[320];
    snprintf(keys, sizeof keys, "%s/k", folder);
    snprintf(file, sizeof file, "%s/allowed", keys);
    assert_ok(wire_keys_make(keys, NULL, 0));
    may_read(keys, NULL);
    assert_int_equal(chmod(file, 0620), 0);
    may_read(keys, "k/allowed: other users may write to it (mode 620)");
    assert_non_null(strstr(status_text(), "run chmod go-w"));
    assert_int_equal(chmod(file, 0644), 0);
    may_read(keys, NULL);
    assert_int_equal(chmod(keys, 0702), 0);
    may_read(keys, "k: other users may write to it (mode 702)");
    assert_int_equal(chmod(keys, 01777), 0); /* only the owner may replace the file there */
    may_read(keys, NULL);
    assert_int_equal(chmod(keys, 0755), 0);
    may_read(keys, NULL);
    if (geteuid() == 0) {
        assert_int_equal(chown(file, NOBODY, NOBODY), 0);
        may_read(keys, "k/allowed: belongs to user 65534");
        assert_non_null(strstr(status_text(), "run chown 0"));
        assert_int_equal(chown(file, 0, 0), 0);
        assert_int_equal(chown(keys, NOBODY, NOBODY), 0);
        may_read(keys, "k: belongs to user 65534");
    }
    harness_remove(&folder);
}

static void test_wire_may__over_loopback_without_keys(void **state)
{
    (void)state;
    char endpoint[64];
    pair ends;
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", harness_port(NULL));
    open_pair(&ends, endpoint, NULL, NULL);
    const wire_peer peer = say(&ends, endpoint);
    assert_ok(wire_may(&peer, WIRE_ROWS, "peer 7"));
    assert_ok(wire_may(&peer, WIRE_WORK, "peer 7"));
    assert_ok(wire_may(&peer, WIRE_STATUS, "peer 7"));
    assert_fails(ST_CONFIG, wire_may(&peer, WIRE_CONTROL, "peer 7"), "only status is answered");
    close_pair(&ends);
}

/* As another user, says something over the socket in this folder, once `ready` can be read. */
static void say_as_nobody(int folder, int ready)
{
    char go, endpoint[64];
    wire *net = NULL;
    wire_socket *socket = NULL;
    snprintf(endpoint, sizeof endpoint, "ipc:///proc/self/fd/%d/s", folder);
    if (read(ready, &go, 1) != 1 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
        _exit(1);
    if (wire_listens(endpoint) != (go == 'c' ? ST_CONFIG : ST_OK))
        _exit(2);
    if (go == 'c')
        _exit(0);
    if (wire_new(&net) != ST_OK || wire_connect(net, endpoint, &socket) != ST_OK ||
        wire_send_json(socket, NULL, KIND_BYE, 0, "{}", 2) != ST_OK)
        _exit(3);
    for (int ms = 0; !wire_greeted(socket); ms++) { /* otherwise closing drops what was said */
        if (ms == WAIT_MS)
            _exit(4);
        usleep(1000);
    }
    wire_close(&socket);
    wire_free(&net);
    _exit(0);
}

/* A control socket on ipc belongs to its owner. go 'c': another user cannot connect. 'o': the mode
 * was opened by hand, and that user has no control all the same. */
static void as_nobody(char go)
{
    char *folder = harness_temp(), endpoint[400];
    int ready[2], how = 0;
    pair ends;
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", folder);
    assert_int_equal(chmod(folder, 0711), 0);
    const int fd = open(folder, O_PATH | O_DIRECTORY);
    assert_true(fd >= 0);
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork(); /* before there are threads */
    if (child == 0)
        say_as_nobody(fd, ready[0]);
    assert_true(child > 0);
    open_pair(&ends, endpoint, NULL, NULL);
    if (go == 'o')
        assert_int_equal(chmod(endpoint + strlen("ipc://"), 0666), 0);
    assert_int_equal(write(ready[1], &go, 1), 1);
    if (go == 'o') {
        const wire_peer peer = hear(&ends);
        assert_int_equal(peer.roles, WIRE_ROWS | WIRE_WORK);
        assert_fails(ST_CONFIG, wire_may(&peer, WIRE_CONTROL, "peer 7"), "the user who runs prepd");
        assert_fails(ST_CONFIG, wire_may(&peer, WIRE_STATUS, "peer 7"), "the user who runs prepd");
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    close_pair(&ends);
    close(ready[0]);
    close(ready[1]);
    close(fd);
    harness_remove(&folder);
}

static void test_wire_bind__only_user_is_for_its_owner(void **state)
{
    (void)state;
    char *folder = harness_temp(), endpoint[400];
    const mode_t mask = umask(0); /* which would admit everyone to another socket */
    struct stat info;
    pair ends;
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", folder);
    open_pair(&ends, endpoint, NULL, NULL);
    umask(mask);
    assert_int_equal(stat(endpoint + strlen("ipc://"), &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    const wire_peer peer = say(&ends, endpoint);
    assert_ok(wire_may(&peer, WIRE_CONTROL, "peer 7"));
    assert_ok(wire_may(&peer, WIRE_STATUS, "peer 7"));
    close_pair(&ends);
    assert_int_equal(stat(endpoint + strlen("ipc://"), &info), -1);
    harness_remove(&folder);
    if (geteuid() != 0)
        HARNESS_SKIP("only root can become another user");
    as_nobody('c');
    as_nobody('o');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed_take_line__says_roles),
        cmocka_unit_test(test_allowed_take_line__names_what_is_wrong),
        cmocka_unit_test(test_wire_roles__by_name),
        cmocka_unit_test(test_wire_bind__only_user_is_for_its_owner),
        cmocka_unit_test(test_wire_may__by_key),
        cmocka_unit_test(test_allowed_read__refuses_a_list_that_others_may_write),
        cmocka_unit_test(test_wire_may__over_loopback_without_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
