"""Takes the keys out of the program's own table:  sala-chat manual | python make_keys.py > keys.txt

One line per action: its name, its keys, what the table says.  help_keys.py says it in sentences."""
import re, sys

text = re.sub(r"\\f.", "", sys.stdin.read().split('.SH "KEYS"')[1].split(".SH")[0]).replace("\\-", "-").replace("\\e", "\\")
for entry in text.split(".TP\n")[1:]:
    keys, what = entry.strip("\n").split("\n")[:2]
    m = re.fullmatch(r"(.*) \((\w+)\)", what)
    print(m.group(2), keys.replace(", ", " "), m.group(1), sep="\t")
