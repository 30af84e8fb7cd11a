"""What a user writes: fit y = 2 x + 1 with a plain module, on however many nodes there are."""

import torch

import lowcomm

peer = lowcomm.attach()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
method = lowcomm.DiLoCo(model, optimizer, peer)
points = torch.linspace(-1, 1, 64)
for x in peer.batches(points):
    loss = (model(x[:, None])[:, 0] - (2 * x + 1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    method.step()
print(f"slope {model.weight.item()} offset {model.bias.item()}")  # noqa: T201
