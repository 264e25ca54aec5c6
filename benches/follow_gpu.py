"""A folder of 200 files is followed: the time from a question to its first token after an edit of 20 lines.

    python3 benches/follow_gpu.py PROGRAM MODEL [TOKENS] [OPTIONS OF THE PROGRAM...]

MODEL is a folder or a name; the files have about TOKENS tokens (500000) in all, each line about 24. On a GPU:
    python3 benches/follow_gpu.py ./sala-chat FOLDER 500000 --device cuda --weights 4bit
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

FILES, LINE_TOKENS = 200, 24
NUMBERS = r"first token after.*|context: .*|document: .*"


def ledger(number: int, line: int) -> str:
    return f"Entry {line} of ledger {number}: box {line % 97} holds {line * 7 % 1009} ropes.\n"


class Program:
    def __init__(self, command: list[str], data: str):
        env = {**os.environ, "SALA_CHAT_DATA_DIR": data, "SALA_CHAT_LOAD_CONFIRM_TOKENS": "100000000"}
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        os.set_blocking(self.child.stdout.fileno(), False)
        self.shown = ""

    def enter(self, line: str):
        self.child.stdin.write((line + "\n").encode())
        self.child.stdin.flush()

    def until(self, pattern: str, seconds: float = 150) -> str:
        """What arrives until the pattern is in it."""
        start, end = len(self.shown), time.monotonic() + seconds
        while time.monotonic() < end and self.child.poll() is None:
            self.shown += (self.child.stdout.read() or b"").decode(errors="replace")
            if re.search(pattern, self.shown[start:]):
                return self.shown[start:]
            time.sleep(0.002)
        self.child.kill()
        sys.exit(f"no {pattern!r} in:\n{self.shown[-3000:]}")


def main():
    program, model = sys.argv[1:3]
    tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 500_000
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        folder = pathlib.Path(work, "folder")
        folder.mkdir()
        lines = tokens // FILES // LINE_TOKENS
        files = [folder / f"ledger{n:03}.txt" for n in range(FILES)]
        for number, file in enumerate(files):
            file.write_text("".join(ledger(number, line) for line in range(lines)))
        options = ["--plain", "--model", model, "--temp", "0", "--max-tokens", "16", *sys.argv[4:], "--follow", str(folder)]
        chat = Program([program, *options], f"{work}/data")
        chat.until("Enter load")
        start = time.monotonic()
        chat.enter("")
        chat.until("is followed")
        print(f"read after {time.monotonic() - start:.1f} s")
        chat.enter("What does box 12 hold?")
        chat.enter("/stats")
        print(*re.findall(NUMBERS, chat.until("kept state")), sep="\n")
        for number in (190, 100, 10):
            texts = [ledger(number, line) for line in range(lines)]
            for line in range(1, min(21, lines)):
                texts[line] = f"Entry {line} of ledger {number}: box {line % 97} was moved to the attic.\n"
            files[number].write_text("".join(texts))
            time.sleep(1.5)
            chat.enter("What does box 13 hold?")
            text = chat.until(rf"ledger{number:03}.txt \((changed|new)")
            chat.enter("/stats")
            print(f"edit of {files[number].name}:", *re.findall(NUMBERS, text + chat.until("kept state")), sep="\n  ")
        chat.enter("/quit")
        chat.child.wait(60)


if __name__ == "__main__":
    main()
