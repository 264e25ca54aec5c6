use std::process::{Command, Stdio};

/// Standard output of a tool of the system; `None` where it is missing, fails or prints nothing.
pub fn printed(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
