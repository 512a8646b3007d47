"""How a decoder asks for attention; where K and V live is the callee's business."""

from collections.abc import Callable

from torch import Tensor

from blendrun.kernels.cpu.rotation import Rotation

# (layer, q [T, num_heads, D], k [T, num_kv_heads, D], v [T, num_kv_heads, D], rotation)
#   -> attention output [T, num_heads, D].
# q, k and v are strided over tokens; q and k are still to be turned by `rotation` and may be
# overwritten. Scale: 1/sqrt(D).
Attend = Callable[[int, Tensor, Tensor, Tensor, Rotation], Tensor]
