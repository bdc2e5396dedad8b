from tests.audit.white_box.conftest import network, records

__all__ = ["network", "records"]
