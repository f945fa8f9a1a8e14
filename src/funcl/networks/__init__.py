"""Networks: layers that expose inputs and sensitivities, architectures, and adapters."""

from funcl.networks.foreign import Foreign as Foreign
from funcl.networks.foreign import from_equinox as from_equinox
from funcl.networks.mlp import MLP as MLP
from funcl.networks.network import LayeredNetwork as LayeredNetwork
from funcl.networks.network import Network as Network
