"""What is kept of finished tasks, how it is chosen, and how context points are drawn from it."""

from funcl.memory.context import Coreset as Coreset
from funcl.memory.context import MadeUp as MadeUp
from funcl.memory.context import Noise as Noise
from funcl.memory.context import Pixels as Pixels
