"""Ctrl-C is held back once, and only where it is ours to hold."""

from __future__ import annotations

import signal
import threading

import pytest

from octavo.entrypoints.interrupts import deferred_interrupt


def test_held_back_until_asked() -> None:
    done = []

    def block() -> None:
        with deferred_interrupt() as check:
            check()
            signal.raise_signal(signal.SIGINT)
            done.append("after the signal")
            check()
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["after the signal"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_is_not_held_back() -> None:
    done = []

    def block() -> None:
        with deferred_interrupt():
            for i in range(3):
                done.append(i)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [0, 1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_somebody_elses_handler_is_left_alone() -> None:
    seen: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with deferred_interrupt() as check:
            signal.raise_signal(signal.SIGINT)
            check()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert seen == [signal.SIGINT]


def test_other_threads_do_nothing() -> None:
    handlers = []

    def body() -> None:
        with deferred_interrupt() as check:
            check()
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
