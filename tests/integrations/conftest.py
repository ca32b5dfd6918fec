from recall.conftest import memory as memory
from recall.conftest import place as place
