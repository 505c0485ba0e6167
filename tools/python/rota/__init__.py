"""What rota has for Python: the pytest plugin (rota.pytest_plugin)."""
