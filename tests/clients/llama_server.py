#!/usr/bin/env python3
"""A real llama.cpp server with a tiny model made on the spot, for `sala-chat --engine`. By hand, in an environment outside the tree:

    python3 -m venv /tmp/llama && /tmp/llama/bin/pip install numpy gguf xllamacpp
    /tmp/llama/bin/python tests/clients/llama_server.py /tmp/llama/tiny.gguf 18091 secretkey &
    OPENAI_API_KEY=secretkey sala-chat --engine http://127.0.0.1:18091/v1 -p "Hello" --max-tokens 30 --json

The weights are random: what is checked is the protocol. Worth trying: no key (401), a prompt of 5,000 words (400, context), kill -9
in the middle of an answer (what had come is kept), the next question then (nobody answers).
"""

import sys
import time

import gguf
import numpy as np
import xllamacpp

HIDDEN, HEADS, LAYERS, INNER, CONTEXT = 64, 4, 2, 128, 4096
WORDS = ["", "the", "a", "and", "cat", "dog", "is", "was"]
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


def write(path):
    """A Llama with a vocabulary of bytes and a few words, weights [out, in] in f32."""
    random = np.random.default_rng(1)
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(HIDDEN)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(HEADS)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(HIDDEN // HEADS)
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{i:02X}>".encode() for i in range(256)]
    tokens += [("\u2581" + word).encode() for word in WORDS]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(WORDS)
    file.add_tokenizer_model("llama")
    file.add_token_list(tokens)
    file.add_token_scores([0.0] * len(tokens))
    file.add_token_types(kinds)
    file.add_unk_token_id(0)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_chat_template(TEMPLATE)

    def tensor(name, *shape):
        ones = name.endswith("norm.weight")
        file.add_tensor(name, np.ones(shape, np.float32) if ones else (random.standard_normal(shape) * 0.1).astype(np.float32))

    tensor("token_embd.weight", len(tokens), HIDDEN)
    tensor("output_norm.weight", HIDDEN)
    tensor("output.weight", len(tokens), HIDDEN)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            tensor(f"blk.{layer}.{name}.weight", HIDDEN)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{layer}.{name}.weight", HIDDEN, HIDDEN)
        for name, shape in (("ffn_gate", (INNER, HIDDEN)), ("ffn_up", (INNER, HIDDEN)), ("ffn_down", (HIDDEN, INNER))):
            tensor(f"blk.{layer}.{name}.weight", *shape)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def main():
    path, port, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    write(path)
    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port, params.api_keys = path, ["127.0.0.1"], port, [key]
    params.n_ctx, params.n_gpu_layers, params.warmup = CONTEXT, 0, False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(60)


main()
