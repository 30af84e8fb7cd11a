"""What transformers makes of an export, beside what the built-in model itself does.

hf_logits.py DIRECTORY EXPORT    prints one JSON object

Must NOT judge it: the test does.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from lowcomm.exports.generate_command import load_built_in
from lowcomm.exports.model_source import find_model
from lowcomm.program.evaluate import generated

TEXT = "def f0(x):\n    return x * \u00e9"


def main() -> None:
    transformers: Any = import_module("transformers")
    directory, exported = map(Path, sys.argv[1:])
    ours = load_built_in(find_model(directory)).eval()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    tokens_BT = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = (ours(tokens_BT) - theirs(tokens_BT).logits).abs().max().item()
        prompt = torch.tensor([list(TEXT.encode())])
        greedy = theirs.generate(prompt, max_new_tokens=20, do_sample=False)[0, prompt.shape[1] :]
    found = {
        "kind": type(theirs).__name__,
        "dtype": str(theirs.dtype),
        "difference": difference,
        "largest": ours(tokens_BT).abs().max().item(),
        "tokens": tokenizer(TEXT, add_special_tokens=False)["input_ids"],
        "text": tokenizer.decode(list(TEXT.encode())),
        "greedy": greedy.tolist(),
        "own_greedy": list(generated(ours, TEXT.encode(), tokens=20, temperature=0, seed=0)),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
