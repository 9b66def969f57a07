"""AdamW over torch's fused kernel, with apex's state layout, on CPU and CUDA alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# The kernels behind torch.optim.AdamW(fused=True); torch has no public name for them.
_ADAMW: Any = torch._fused_adamw_
_ADAM: Any = torch._fused_adam_


class FusedAdam(torch.optim.Optimizer):
    """The interface of apex's FusedAdam: `step` per param group, `exp_avg*` per parameter."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = adam_w_mode

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyrefly: ignore[bad-override]
        update = _ADAMW if self.adam_w_mode else _ADAM
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = int(group.get("step") or 0) + 1
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            states = [self._state_of(p) for p in params]
            # One counter is enough: the kernel reads the step and leaves it as it is.
            step = torch.tensor(float(group["step"]), device=params[0].device)
            update(
                params,
                [p.grad for p in params],
                [s["exp_avg"] for s in states],
                [s["exp_avg_sq"] for s in states],
                [],
                [step] * len(params),
                amsgrad=False,
                lr=float(group["lr"]),
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )

    def make_state(self) -> None:
        """Zero moments for every parameter, so that a checkpoint before the first step is whole."""
        for group in self.param_groups:
            group["step"] = int(group.get("step") or 0)
            for param in group["params"]:
                self._state_of(param)

    def _state_of(self, param: Tensor) -> dict[str, Tensor]:
        state = self.state[param]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        return state
