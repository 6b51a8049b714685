"""A long seeded mixture of everything that a broker does, judged: ``python -m soak``, in tests/."""
