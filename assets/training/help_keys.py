"""What the model says about keys.  Which keys there are comes from the program's table (keys.txt, by make_keys.py);
an action without a sentence here, or a sentence without an action, is an error."""
import os

HERE = os.path.dirname(os.path.abspath(__file__))
# action: (what one wants, as after "how do i ...", the answer with {K} for its keys)
SAY = {
    "send": (["send a message", "send my question", "submit what i wrote"], "{K} sends what you wrote. While I read or answer, it waits in a queue."),
    "newline": (["make a new line", "start a new line", "write several lines", "insert a line break"], "{K} starts a new line in the input; so does \\ and then Enter."),
    "escape": (["stop with a key", "stop an answer by key", "clear the input"], "{K} stops an answer. Pressed twice it clears the input, or opens the timeline when the input is empty."),
    "eof": (["leave by key", "quit with the keyboard"], "{K} quits when the input is empty; otherwise it deletes to the right."),
    "up": (["get my earlier question back", "go a line up", "see my last prompt again"], "{K} goes a line up, and from the first line to your earlier prompts."),
    "down": (["go a line down", "get to the later prompts"], "{K} goes a line down, and from the last line to your later prompts."),
    "left": (["move the cursor left", "go one character left"], "{K} moves the cursor left."),
    "right": (["move the cursor right", "go one character right"], "{K} moves the cursor right."),
    "line_start": (["go to the start of the line", "jump to the beginning of the line"], "{K} goes to the start of the line."),
    "line_end": (["go to the end of the line", "jump to the line's end"], "{K} goes to the end of the line; with an empty input it follows the answer again."),
    "word_left": (["go one word left", "move back by a word"], "{K} goes one word to the left."),
    "word_right": (["go one word right", "move forward by a word"], "{K} goes one word to the right."),
    "backspace": (["delete to the left", "delete the last character"], "{K} deletes the character to the left."),
    "delete": (["delete to the right", "delete the next character"], "{K} deletes the character to the right."),
    "kill_word": (["cut a word", "delete a whole word"], "{K} cuts the word to the left; Ctrl-Y pastes it."),
    "kill_to_end": (["cut to the end of the line", "delete the rest of the line"], "{K} cuts to the end of the line; Ctrl-Y pastes it."),
    "kill_to_start": (["cut to the start of the line", "delete back to the start of the line"], "{K} cuts to the start of the line; Ctrl-Y pastes it."),
    "yank": (["paste what i cut", "get back the text that i cut"], "{K} pastes what was cut or cleared."),
    "undo_edit": (["undo an edit in the input", "undo my typing"], "{K} undoes an edit of the input."),
    "history_search": (["search my earlier prompts", "find an old question of mine", "search the history"], "{K} searches your earlier prompts."),
    "complete": (["complete a command", "complete a file name", "complete a path"], "{K} completes a command or a path."),
    "page_up": (["scroll up", "scroll back"], "{K} scrolls up; the screen then no longer follows the answer."),
    "page_down": (["scroll down", "scroll forward"], "{K} scrolls down."),
    "top": (["go to the first message", "jump to the top of the chat"], "{K} goes to the first message."),
    "follow": (["follow the answer again", "jump to the end of the chat"], "{K} goes to the end and follows the answer again."),
    "prev_message": (["select a message", "go to the message above"], "{K} selects a message above; then y copies it, i shows what it looked at, e edits, r answers again and f forks."),
    "next_message": (["go to the next message", "select the message below"], "{K} selects the next message."),
    "find": (["search in this chat", "find a word on the screen", "search what was said"], "{K} searches in what was said in this session."),
    "thinking": (["fold the thoughts", "open the thoughts by key"], "{K} folds or opens the thoughts."),
    "panel": (["open the side panel", "close the panel on the side", "see the panel"], "{K} opens or closes the side panel, from 120 columns on."),
    "session": (["switch to another open session", "go to another session by key"], "{K} go to the sessions opened before, in the order of opening."),
    "editor": (["write in my editor", "use vim for a long question", "open my editor"], "{K} opens the editor of $VISUAL or $EDITOR for what you write."),
    "unqueue": (["edit a queued message", "take back a message that waits"], "{K} takes the first queued message back for editing."),
    "redraw": (["draw the screen again", "repair a broken screen"], "{K} draws the screen again."),
    "suspend": (["suspend the program", "put the program into the background"], "{K} suspends the program; fg in the shell brings it back."),
    "help": (["get help by key", "open the help with a key"], "{K} opens the help; so does ? when the input is empty."),
}
FIXED = [(["ctrl-c"], ["interrupt with a key", "cancel with the keyboard"], "Ctrl-C stops an answer; else it clears the input, and on empty input it quits.")]


def shown(k):
    """as the program writes a key: ctrl-o -> Ctrl-O"""
    names = {"pgup": "PgUp", "pgdn": "PgDn"}
    *mods, last = k.split("-") if k != "-" else ["-"]
    last = names.get(last, last.upper() if len(last) == 1 or last[1:].isdigit() and last[0] == "f" else last.capitalize())
    return "-".join([m.capitalize() for m in mods] + [last])


def joined(ks): return ks[0] if len(ks) == 1 else ", ".join(ks[:-1]) + " or " + ks[-1]


KEYS = []                                    # [(keys as shown, what one wants, answer)]
for l in open(os.path.join(HERE, "keys.txt"), encoding="utf-8").read().split("\n"):
    if not l: continue
    name, keys, _ = l.split("\t"); ks = [shown(k) for k in keys.split(" ")]; want, say = SAY[name]
    KEYS.append((ks, want, say.replace("{K}", f"{ks[0]} to {ks[-1]}" if name == "session" else joined(ks))))
for keys, want, say in FIXED: KEYS.append(([shown(k) for k in keys], want, say))
assert len(KEYS) == len(SAY) + len(FIXED), "keys.txt and SAY differ"
KEY_WHAT = ["what does {} do", "what is {} for", "what does the key {} do", "what happens when i press {}", "{}", "what is {}", "what does pressing {} do", "explain {}", "what does the {} key do", "when do i press {}", "what can i do with {}"]
KEY_WHICH = ["which key do i press to {}", "what is the key to {}", "which key lets me {}", "how do i {} with the keyboard", "is there a key to {}", "which shortcut is there to {}", "what do i press to {}", "what key do i use to {}"]
