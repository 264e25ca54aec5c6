"""Uses what `sala-chat draft capture --docs DIR --out SAMPLES` writes.

    python captured.py convert SAMPLES OUT --model FOLDER     # one torch file per sample, for SpecForge's offline EAGLE-3 training
    python captured.py train SAMPLES --eagle eagle3 --out OUT # trains the demo model's head further, with train_eagle3.py's loss

A sample is a safetensors file: input_ids [T] i64, loss_mask [T] i64 (1 where the model wrote the token), hidden_state [1,T,H] bf16 (after
the last layer, before the final norm), aux_hidden_state [1,T,3H] bf16 (tapped layers, low|mid|high); its metadata names eps and logit_divisor.

SpecForge's offline reader takes torch files *.ckpt with the same four names. It multiplies hidden_state with the target's lm_head to get
target logits and knows neither the final norm nor muP's divisor, so both are applied here: hidden_state becomes rmsnorm(h) w / divisor.
"""
import argparse, glob, os
import torch, torch.nn.functional as F
from safetensors import safe_open


def samples(folder):
    for path in sorted(glob.glob(os.path.join(folder, "sample-*.safetensors"))):
        with safe_open(path, "pt") as f: yield path, {k: f.get_tensor(k) for k in f.keys()}, f.metadata()


def final_norm(folder):
    """the model's final norm weight, wherever in its folder it lies"""
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with safe_open(path, "pt") as f:
            if "model.norm.weight" in f.keys(): return f.get_tensor("model.norm.weight").float()
    raise SystemExit(f"{folder}: no model.norm.weight in its safetensors files")


def normed(h, w, meta):
    h = h.float()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + float(meta["eps"])) * w / float(meta["logit_divisor"])


def convert(a):
    w = final_norm(a.model); os.makedirs(a.out, exist_ok=True); n = 0
    for path, t, meta in samples(a.samples):
        t["hidden_state"] = normed(t["hidden_state"], w, meta).to(torch.bfloat16)
        torch.save(t, os.path.join(a.out, os.path.basename(path).replace(".safetensors", ".ckpt"))); n += 1
    print(n, "samples converted")


def train(a):
    """the loss of train_eagle3.py over captured features: no forward pass of the target model"""
    from train_eagle3 import load_head, save_head
    here = os.path.dirname(os.path.abspath(__file__)); dev = "cuda" if torch.cuda.is_available() else "cpu"; cd = torch.float32
    tables = {}
    for path in glob.glob(here + "/../model-*.safetensors"):
        with safe_open(path, "pt") as f: tables.update({k: f.get_tensor(k).float() for k in f.keys() if k in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")})
    class Target:                                             # what load_head asks of a model
        def w(self, n): return tables[n]
    hd = load_head(a.eagle, Target(), dev).train(); lm = tables.get("lm_head.weight", tables["model.embed_tokens.weight"]).to(dev); w = tables["model.norm.weight"].to(dev)
    t2d = torch.zeros(len(lm), dtype=torch.bool, device=dev); t2d[hd.ids] = True
    opt = torch.optim.AdamW(hd.parameters(), lr=a.lr, betas=(0.9, 0.97), weight_decay=0.0)
    data = [(t, m) for _, t, m in samples(a.samples)]; assert data, "no samples"
    for epoch in range(a.epochs):
        total = hits = count = 0
        for t, meta in data:
            X, W = t["input_ids"][None].to(dev), t["loss_mask"][None].to(dev); T = X.shape[1]
            with torch.no_grad(): lg = normed(t["hidden_state"].to(dev), w, meta) @ lm.t(); p_all = lg.softmax(-1)[..., hd.ids]; ok_all = t2d[lg.argmax(-1)]; am = lg.argmax(-1)
            g = hd.fuse(t["aux_hidden_state"].to(dev).float(), cd); cache = []; loss = 0
            for j in range(a.steps):
                g, dl = hd.run(torch.roll(X, -(1 + j), 1), g, j, cache, cd); sh = 1 + j; n = T - sh - 1
                p = p_all[:, sh:sh + n]; p = p / p.sum(-1, keepdim=True).clamp(min=1e-6)
                wt = torch.where(W[:, sh + 1:sh + 1 + n] == 1, 1.0, 0.05) * ok_all[:, sh:sh + n].float()
                loss = loss + 0.9 ** j * (-(p * F.log_softmax(dl[:, :n], -1)).sum(-1) * wt).sum() / wt.sum().clamp(min=1e-6)
                if j == 0:
                    own = W[:, sh + 1:sh + 1 + n] == 1; hits += ((hd.ids[dl[:, :n].argmax(-1)] == am[:, sh:sh + n]) & own).sum().item(); count += own.sum().item()
            opt.zero_grad(); loss.backward(); opt.step(); total += loss.item()
        print("epoch", epoch, "loss", round(total / len(data), 4), "first draft right", round(hits / max(1, count), 4), flush=True)
    save_head(hd, a.out)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(); sub = ap.add_subparsers(required=True)
    c = sub.add_parser("convert"); c.add_argument("samples"); c.add_argument("out"); c.add_argument("--model", required=True); c.set_defaults(run=convert)
    t = sub.add_parser("train"); t.add_argument("samples"); t.add_argument("--eagle", default="eagle3"); t.add_argument("--out", required=True); t.add_argument("--epochs", type=int, default=2)
    t.add_argument("--steps", type=int, default=5); t.add_argument("--lr", type=float, default=1e-4); t.set_defaults(run=train)
    a = ap.parse_args(); a.run(a)
