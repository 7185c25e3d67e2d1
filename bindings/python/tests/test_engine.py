"""The engine: the bits of a session, whoever else is served."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from conftest import weights

import gatestream


def test_requests_get_the_bits_of_a_session(model: gatestream.Model, x: np.ndarray) -> None:
    y = gatestream.Session(model).run(x).output

    async def main() -> None:
        with gatestream.Engine(model) as engine:
            each = [engine.submit(x[:, at], outputs="each") for at in range(3)]
            last = [engine.submit(x[:5, at]) for at in range(3)]
            for at, answer in enumerate(await asyncio.gather(*each)):
                np.testing.assert_array_equal(answer, y[:, at])
            for at, answer in enumerate(await asyncio.gather(*last)):
                np.testing.assert_array_equal(answer, y[4, at])
            assert engine.stats()["completed"] == 6

    asyncio.run(main())


def test_both_directions_are_served(x: np.ndarray) -> None:
    tensors = weights("gru", 12, 8)
    tensors |= {f"{name}_reverse": value[::-1].copy() for name, value in tensors.items()}
    model = gatestream.Model.from_state_dict(tensors)
    y = gatestream.Session(model).run(x).output
    with gatestream.Engine(model, max_steps=50) as engine:
        np.testing.assert_array_equal(engine.submit(x[:, 2], outputs="each").result(), y[:, 2])


def test_streams_go_on_where_they_stopped(model: gatestream.Model, x: np.ndarray) -> None:
    y = gatestream.Session(model).run(x).output
    with gatestream.Engine(model) as engine:
        stream = engine.stream()
        steps = [stream.push(row) for row in x[:10, 0]]
        np.testing.assert_array_equal(np.stack([step.result() for step in steps]), y[:10, 0])
        other = engine.stream(stream.state())
        stream.close()
        np.testing.assert_array_equal(other.push(x[10, 0]).result(), y[10, 0])
        with pytest.raises(gatestream.RequestError):
            stream.push(x[0, 0])


def test_ends_without_an_answer(model: gatestream.Model) -> None:
    long = np.zeros((200_000, 12), np.float32)

    async def cancelled(engine: gatestream.Engine) -> None:
        task = asyncio.ensure_future(awaited(engine.submit(long)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def awaited(ticket: gatestream.Ticket) -> np.ndarray:
        return await ticket

    with gatestream.Engine(model) as engine:
        with pytest.raises(gatestream.DeadlineError):
            engine.submit(long, timeout=0.01).result()
        ticket = engine.submit(long)
        with pytest.raises(TimeoutError):
            ticket.result(timeout=0.01)
        ticket.cancel()
        with pytest.raises(gatestream.RequestCancelledError):
            ticket.result()
        asyncio.run(cancelled(engine))
        with pytest.raises(gatestream.InputError):
            engine.submit(long[:, :3])
        with pytest.raises(gatestream.InputError):
            engine.submit(long, timeout=1e19)
        engine.submit(long[:5]).result()
        last = engine.submit(long)
    with pytest.raises(gatestream.RequestError):
        last.result()
    with pytest.raises(gatestream.RequestError):
        engine.submit(long)


def test_everybody_who_waits_is_woken(model: gatestream.Model) -> None:
    long = np.zeros((50_000, 12), np.float32)
    answers = []

    async def waited(ticket: gatestream.Ticket) -> np.ndarray:
        return await ticket

    async def main(engine: gatestream.Engine) -> None:
        ticket = engine.submit(long)
        tasks = [asyncio.ensure_future(waited(ticket)) for _ in range(3)]
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: answers.append(ticket.result()))
        thread.start()
        ticket.done()
        answers.extend(await asyncio.wait_for(asyncio.gather(*tasks), 60))
        while not ticket.done():
            await asyncio.sleep(0)
        answers.append(await ticket)
        thread.join()
        # The end that another thread brings.
        ticket = engine.submit(long)
        tasks = [asyncio.ensure_future(waited(ticket)) for _ in range(2)]
        await asyncio.sleep(0)
        threading.Thread(target=ticket.cancel).start()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert [type(why) for why in ended] == [gatestream.RequestCancelledError] * 2

    with gatestream.Engine(model) as engine:
        asyncio.run(main(engine))
    assert len(answers) == 5
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])


def test_a_call_of_done_between_keeps_the_waiter(model: gatestream.Model) -> None:
    async def main(engine: gatestream.Engine) -> None:
        ticket = engine.submit(np.zeros((50_000, 12), np.float32))

        async def wait() -> None:
            await ticket

        waiter = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        assert not ticket.done()
        await asyncio.wait_for(waiter, 60)

    with gatestream.Engine(model) as engine:
        asyncio.run(main(engine))


def test_wrong_arguments_are_input_errors(model: gatestream.Model, x: np.ndarray) -> None:
    with gatestream.Engine(model) as engine:
        stream = engine.stream()
        for call in (
            lambda: engine.submit(x[:, 0], priority=300),
            lambda: engine.submit(x[:, 0], priority=-1),
            lambda: stream.push(x[0, 0], priority=256),
            lambda: engine.stream(np.zeros(47)),
            lambda: engine.stream(np.zeros((24, 2))),
            lambda: engine.submit(x[:, 0], states=[np.zeros(24)]),
            lambda: engine.submit(x[:, 0], states=[np.zeros(24), np.zeros((4, 6))]),
            lambda: stream.push(x[0, :1].T),
        ):
            with pytest.raises(gatestream.InputError):
                call()
    for options in ({"max_batch": 0}, {"max_batch": -1}, {"max_steps": -1}, {"max_requests": -1}):
        with pytest.raises(gatestream.InputError):
            gatestream.Engine(model, **options)


def test_policies(model: gatestream.Model, x: np.ndarray) -> None:
    y = gatestream.Session(model).run(x).output
    for options, name in (({}, "ebatch"), *(({"policy": name}, name) for name in ("ebatch", "cellular", "shortest"))):
        with gatestream.Engine(model, **options) as engine:
            assert engine.policy == name
            np.testing.assert_array_equal(engine.submit(x[:, 0]).result(), y[-1, 0])


def test_a_full_engine_refuses(model: gatestream.Model) -> None:
    long = np.zeros((100_000, 12), np.float32)
    with gatestream.Engine(model, max_requests=2) as engine:
        tickets = [engine.submit(long) for _ in range(2)]
        with pytest.raises(gatestream.OverloadedError):
            engine.submit(long)
        for ticket in tickets:
            ticket.cancel()


def test_many_threads_submit(model: gatestream.Model, x: np.ndarray) -> None:
    y = gatestream.Session(model).run(x).output
    failures = []
    with gatestream.Engine(model) as engine:

        def user(at: int) -> None:
            for _ in range(50):
                answer = engine.submit(x[:, at % 3]).result()
                if (answer != y[-1, at % 3]).any():
                    failures.append(at)

        users = [threading.Thread(target=user, args=(at,)) for at in range(8)]
        for one in users:
            one.start()
        for one in users:
            one.join()
    assert not failures
