from recall.conftest import memory as memory
