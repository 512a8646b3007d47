"""Places in what a device has been given to do: whether it has come so far."""

import torch


class Mark:
    """Behind all that the device's current stream has by now; a CPU is past it at once."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def is_passed(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until it is passed."""
        if self._event is not None:
            self._event.synchronize()
