"""Celery with a real worker process over the rpc result backend."""
