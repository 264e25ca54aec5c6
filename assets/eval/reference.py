"""Writes reference logits of a MiniCPM-SALA checkpoint with Hugging Face transformers, for `sala-chat eval FILE`.

    python reference.py MODEL_FOLDER TEXT_FILE reference.safetensors [LENGTH ...]

Needs torch, transformers, safetensors and whatever the checkpoint's own code imports; a GPU for the 9B model. LENGTH
defaults to 512 8192 32768 131072; a length that the text does not fill is left out. One teacher-forced call per length,
bf16 as the checkpoint is; only the chosen rows go through the head, so that memory does not grow with the vocabulary."""
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

EACH = 32


def chosen_rows(length):
    """Some rows all over the text and the last ones, where most lies behind: as sala-chat chooses them."""
    rows = {length * (i + 1) // (EACH + 1) for i in range(EACH)} | set(range(max(0, length - EACH), length))
    return sorted(row for row in rows if row < length)


def main(folder, text_file, out, lengths):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    ids = tokenizer(open(text_file, encoding="utf-8").read(), add_special_tokens=False)["input_ids"]
    if tokenizer.bos_token_id is not None:
        ids = [tokenizer.bos_token_id] + ids
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, torch_dtype="auto").to(device).eval()
    config, tensors = model.config, {}
    divisor = config.hidden_size / config.dim_model_base
    for length in lengths:
        if length > len(ids):
            print(f"{length}: the text has only {len(ids)} tokens, left out")
            continue
        tokens, rows = torch.tensor(ids[:length]), torch.tensor(chosen_rows(length))
        with torch.no_grad():
            hidden = model.model(tokens[None].to(device), use_cache=False).last_hidden_state[0, rows.to(device)]
            logits = model.lm_head(hidden / divisor).float().cpu()
        tensors |= {f"tokens.{length}": tokens, f"rows.{length}": rows, f"logits.{length}": logits}
        print(f"{length}: {len(rows)} rows")
    save_file(tensors, out, metadata={"made_by": "transformers", "dtype": str(model.dtype)})


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:4], [int(n) for n in sys.argv[4:]] or [512, 8192, 32768, 131072])
