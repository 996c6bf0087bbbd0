from __future__ import annotations

import threading

import pytest

from hookpoint.callbacks.notify._sender import SendFailed, SendQueue


class Door:
    """A transport that lets messages through while it is open and raises the given errors."""

    def __init__(self, *, is_open=True):
        self.sent, self.cancelled, self.fails = [], 0, {}
        self.is_open, self.has_begun = threading.Event(), threading.Event()
        if is_open:
            self.is_open.set()

    def send(self, message):
        self.has_begun.set()
        assert self.is_open.wait(60)
        if message in self.fails:
            raise self.fails[message]
        self.sent.append(message)

    def cancel(self):
        self.cancelled += 1
        self.is_open.set()


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hookpoint")]


def test_messages_are_sent_in_order(caplog):
    door = Door()
    queue = SendQueue("mail", door)
    for number in range(50):
        queue.put(number)
    queue.finish(60)
    assert door.sent == list(range(50))
    assert door.cancelled == 0
    assert caplog.messages == []


def test_without_messages_no_thread_is_started():
    queue = SendQueue("nothing", Door())
    assert "hookpoint nothing" not in threads()
    queue.finish(0)


def test_the_thread_ends_when_the_queue_is_finished():
    queue = SendQueue("mail", Door())
    queue.put(1)
    thread = queue._thread
    queue.finish(60)
    thread.join(60)
    assert not thread.is_alive()


def test_a_full_queue_drops_its_oldest_messages_without_waiting(caplog):
    door = Door(is_open=False)
    queue = SendQueue("mail", door, capacity=3)
    queue.put(0)
    assert door.has_begun.wait(60)
    for number in range(1, 11):
        queue.put(number)
    assert queue.dropped == 7
    door.is_open.set()
    queue.finish(60)
    assert door.sent == [0, 8, 9, 10]
    assert caplog.messages == ["mail: messages lost: 7 dropped from a full queue"]


def test_a_hanging_message_is_cancelled_at_the_end_and_logged(caplog):
    door = Door(is_open=False)
    queue = SendQueue("mail", door)
    queue.put(0)
    queue.put(1)
    assert door.has_begun.wait(60)
    queue.finish(0.01)
    assert door.cancelled == 1
    queue._thread.join(60)
    assert door.sent == [0]
    assert caplog.messages == ["mail: messages lost: 2 not sent before the run ended"]


def test_each_kind_of_failure_is_logged_once_and_later_messages_are_sent(caplog):
    door = Door()
    door.fails = {
        1: SendFailed("timeout", "curl was killed after 10 s"),
        2: SendFailed("timeout", "curl was killed after 11 s"),
        3: ValueError("no such thing"),
        5: SendFailed("code 6", "curl exited with code 6"),
        6: ValueError("another"),
    }
    queue = SendQueue("mail", door)
    for number in range(8):
        queue.put(number)
    queue.finish(60)
    assert door.sent == [0, 4, 7]
    assert caplog.messages == [
        "mail: curl was killed after 10 s; the run continues. Later failures of this kind are not logged",
        "mail: ValueError: no such thing; the run continues. Later failures of this kind are not logged",
        "mail: curl exited with code 6; the run continues. Later failures of this kind are not logged",
        "mail: messages lost: 5 failed",
    ]


def test_the_failure_of_a_cancelled_message_is_not_logged(caplog):
    door = Door(is_open=False)
    door.fails = {0: SendFailed("code -9", "curl exited with code -9")}
    queue = SendQueue("mail", door)
    queue.put(0)
    assert door.has_begun.wait(60)
    queue.finish(0)
    queue._thread.join(60)
    assert caplog.messages == ["mail: messages lost: 1 not sent before the run ended"]


@pytest.mark.parametrize("times", [1, 5])
def test_messages_can_be_put_from_several_threads(times):
    door = Door()
    queue = SendQueue("mail", door, capacity=10_000)
    putters = [threading.Thread(target=lambda: [queue.put(number) for number in range(100)]) for _ in range(times)]
    for putter in putters:
        putter.start()
    for putter in putters:
        putter.join()
    queue.finish(60)
    assert sorted(door.sent) == sorted(list(range(100)) * times)
