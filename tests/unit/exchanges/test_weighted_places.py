"""`WeightedPlaces` against lists that are made again after each change."""

from __future__ import annotations

from random import Random

import pytest

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.field_table import EMPTY_TABLE
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.random_exchange import RandomExchange
from warren.exchanges.weighted_places import BLOCK_MAX, WeightedPlaces, sort_key
from warren.queues.destination import Destination


def named(number: int) -> Destination:
    made = Destination(f"q{number:06}")
    made.is_queue = True
    return made


def spread(pairs: list[tuple[Destination, int]]) -> list[Destination]:
    return [destination for destination, weight in pairs for _ in range(weight)]


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_places_are_those_of_a_list(is_sorted: bool, seed: int) -> None:
    random = Random(seed)
    places = WeightedPlaces()
    model: list[tuple[Destination, int]] = []
    numbers = list(range(2000))
    random.shuffle(numbers)
    for step in range(3000):
        doing = random.random()
        if numbers and (doing < 0.6 or not model):
            destination, weight = named(numbers.pop()), random.randint(1, 4)
            if is_sorted:
                places.insert_sorted(destination, weight)
                model.append((destination, weight))
                model.sort(key=lambda pair: sort_key(pair[0]))
            else:
                places.append(destination, weight)
                model.append((destination, weight))
        elif doing < 0.8:
            at = random.randrange(len(model))
            model[at] = (model[at][0], random.randint(1, 4))
            places.set_weight(*model[at])
        else:
            gone, _ = model.pop(random.randrange(len(model)))
            places.remove(gone)
            assert gone not in places and places.weight(gone) == 0
        if step % 100 == 0:
            expected = spread(model)
            assert places.total == len(expected)
            assert [places.at(place) for place in range(places.total)] == expected


def test_a_deleted_destination_leaves_when_it_is_chosen() -> None:
    exchange = RandomExchange(ExchangeDeclaration("x", "x-random", durable=False), 7)
    queues = [named(number) for number in range(3 * BLOCK_MAX)]
    for queue in queues:
        exchange.bind(Binding(exchange, queue, "", EMPTY_TABLE))
    for queue in queues[:-1]:
        queue.deleted = True
    found: list[Destination] = []
    for _ in range(10):
        exchange.match("k", Content(b""), found)
    assert found == [queues[-1]] * 10
    for queue in queues:
        assert exchange.unbind(queue, "", EMPTY_TABLE) is not None
        assert queue not in exchange.places
    assert exchange.places.total == 0
