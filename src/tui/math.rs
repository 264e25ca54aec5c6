//! Simple TeX as Unicode: `x^2 \le \frac{a}{b}` turns into `x² ≤ a/b`. Other TeX stays unchanged.

const SYMBOLS: &str = "\
    alpha α  beta β  gamma γ  delta δ  epsilon ε  varepsilon ε  zeta ζ  eta η  theta θ  iota ι  kappa κ \
    lambda λ  mu μ  nu ν  xi ξ  pi π  rho ρ  sigma σ  tau τ  phi φ  varphi φ  chi χ  psi ψ  omega ω  Gamma Γ \
    Delta Δ  Theta Θ  Lambda Λ  Xi Ξ  Pi Π  Sigma Σ  Phi Φ  Psi Ψ  Omega Ω  cdot ·  times ×  div ÷  pm ± \
    mp ∓  ast ∗  circ ∘  oplus ⊕  otimes ⊗  odot ⊙  le ≤  leq ≤  ge ≥  geq ≥  ne ≠  neq ≠  ll ≪  gg ≫ \
    approx ≈  sim ∼  simeq ≃  equiv ≡  propto ∝  in ∈  notin ∉  ni ∋  subset ⊂  subseteq ⊆  supset ⊃ \
    supseteq ⊇  cup ∪  cap ∩  setminus ∖  emptyset ∅  varnothing ∅  forall ∀  exists ∃  neg ¬  land ∧ \
    wedge ∧  lor ∨  vee ∨  to →  rightarrow →  longrightarrow →  leftarrow ←  leftrightarrow ↔  Rightarrow ⇒ \
    implies ⇒  Leftarrow ⇐  Leftrightarrow ⇔  iff ⇔  mapsto ↦  sum ∑  prod ∏  int ∫  oint ∮  partial ∂ \
    nabla ∇  infty ∞  angle ∠  perp ⊥  parallel ∥  mid |  vert |  Vert ‖  langle ⟨  rangle ⟩  lfloor ⌊ \
    rfloor ⌋  lceil ⌈  rceil ⌉  ldots …  dots …  cdots ⋯  vdots ⋮  prime ′  degree °  ell ℓ  hbar ℏ  Re ℜ \
    Im ℑ  aleph ℵ  star ⋆  bullet •  top ⊤  bot ⊥  therefore ∴  because ∵  lbrace {  rbrace }  colon : \
    ";

const NAMES: &[&str] = &[
    "log", "ln", "lg", "exp", "sin", "cos", "tan", "cot", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "max",
    "min", "sup", "inf", "lim", "argmax", "argmin", "det", "dim", "ker", "gcd", "deg", "Pr", "mod",
];

const ACCENTS: &[(&str, char)] = &[
    ("hat", '\u{302}'),
    ("widehat", '\u{302}'),
    ("bar", '\u{304}'),
    ("overline", '\u{304}'),
    ("tilde", '\u{303}'),
    ("widetilde", '\u{303}'),
    ("vec", '\u{20d7}'),
    ("dot", '\u{307}'),
    ("ddot", '\u{308}'),
];

const FONTS: &str = "text textbf textit textrm mathrm mathbf mathit mathsf mathtt boldsymbol operatorname mbox mathcal";

const SILENT: &[&str] =
    &["left", "right", "big", "Big", "bigl", "bigr", "Bigl", "Bigr", "displaystyle", "limits", "nonumber"];

const SUPERSCRIPTS: &str = "0⁰1¹2²3³4⁴5⁵6⁶7⁷8⁸9⁹+⁺-⁻=⁼(⁽)⁾aᵃbᵇcᶜdᵈeᵉfᶠgᵍhʰiⁱjʲkᵏlˡmᵐnⁿoᵒpᵖrʳsˢtᵗuᵘvᵛwʷxˣyʸzᶻTᵀ′′∗*";
const SUBSCRIPTS: &str = "0₀1₁2₂3₃4₄5₅6₆7₇8₈9₉+₊-₋=₌(₍)₎aₐeₑhₕiᵢjⱼkₖlₗmₘnₙoₒpₚrᵣsₛtₜuᵤvᵥxₓ";
const DOUBLE_STRUCK: &str = "RℝNℕZℤQℚCℂEΕPℙHℍ";
const DEEPEST: usize = 16;

pub fn unicode(tex: &str) -> Option<String> {
    let mut reader = Reader { rest: tex.trim(), depth: 0 };
    let text = reader.group(None)?;
    let words: Vec<&str> = text.split(' ').filter(|w| !w.is_empty()).collect();
    Some(words.join(" "))
}

/// Distinguishes an equation between dollars from prices. Braces around the whole text mark an equation.
pub fn is_equation(tex: &str) -> bool {
    if tex.starts_with('{') && tex.ends_with('}') {
        return true;
    }
    let has = |marks: &[char]| tex.contains(marks);
    let letters = tex.chars().filter(|c| c.is_alphabetic()).count();
    match tex.chars().next() {
        Some(c) if c.is_ascii_digit() => has(&['\\', '^', '_', '=']) || letters > 0 && !tex.contains(' '),
        Some(_) => has(&['\\', '^', '_', '=', '+', '<', '>']) || letters == 1,
        None => false,
    }
}

struct Reader<'t> {
    rest: &'t str,
    depth: usize,
}

fn mapped(table: &str, c: char) -> Option<char> {
    let mut pairs = table.chars().zip(table.chars().skip(1)).step_by(2);
    pairs.find(|(from, _)| *from == c).map(|(_, to)| to)
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn group(&mut self, close: Option<char>) -> Option<String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let mut out = String::new();
        while let Some(c) = self.next() {
            match c {
                c if Some(c) == close => {
                    self.depth -= 1;
                    return Some(out);
                }
                '{' => out.push_str(&self.group(Some('}'))?),
                '}' => return None,
                '^' => out.push_str(&self.script(SUPERSCRIPTS, '^')?),
                '_' => out.push_str(&self.script(SUBSCRIPTS, '_')?),
                '\\' => out.push_str(&self.command()?),
                '&' | '~' | '\n' | '\t' => out.push(' '),
                '\'' => out.push('′'),
                '*' => out.push('∗'),
                c => out.push(c),
            }
        }
        close.is_none().then_some(out)
    }

    fn argument(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        match self.next()? {
            '{' => self.group(Some('}')),
            '\\' => self.command(),
            c @ ('}' | '^' | '_' | '&') => (c == '&').then(String::new),
            c => Some(c.to_string()),
        }
    }

    /// Superscript or subscript if Unicode has all characters, otherwise brackets after the mark.
    fn script(&mut self, table: &str, mark: char) -> Option<String> {
        let text = self.argument()?;
        let text = text.trim();
        let small: Option<String> = text.chars().filter(|c| *c != ' ').map(|c| mapped(table, c)).collect();
        Some(match small {
            Some(small) => small,
            None if text.chars().count() == 1 => format!("{mark}{text}"),
            None => format!("{mark}({text})"),
        })
    }

    fn command(&mut self) -> Option<String> {
        let end = self.rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.rest.len());
        if end == 0 {
            return Some(match self.next()? {
                ',' | ';' | ':' | ' ' => " ".into(),
                '!' => String::new(),
                '|' => "‖".into(),
                '\\' => "; ".into(),
                c @ ('{' | '}' | '%' | '$' | '&' | '#' | '_') => c.to_string(),
                _ => return None,
            });
        }
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        if matches!(name, "quad" | "qquad") {
            return Some("  ".into());
        }
        let words = SYMBOLS.split_whitespace();
        let mut symbols = words.clone().zip(words.skip(1)).step_by(2);
        if let Some((_, symbol)) = symbols.find(|(known, _)| *known == name) {
            return Some(symbol.into());
        }
        if NAMES.contains(&name) {
            let gap = if self.rest.starts_with(|c: char| c.is_alphanumeric() || c == '\\') { " " } else { "" };
            return Some(format!("{name}{gap}"));
        }
        if SILENT.contains(&name) {
            if name != "displaystyle" && self.rest.starts_with('.') {
                self.next();
            }
            return Some(String::new());
        }
        if FONTS.split(' ').any(|font| font == name) {
            return self.argument();
        }
        if let Some((_, accent)) = ACCENTS.iter().find(|a| a.0 == name) {
            let text = self.argument()?;
            // A combining mark fits over one letter only.
            return (text.chars().count() == 1).then(|| format!("{text}{accent}"));
        }
        match name {
            "frac" | "dfrac" | "tfrac" => {
                let (above, below) = (self.argument()?, self.argument()?);
                Some(format!("{}/{}", bracketed(&above), bracketed(&below)))
            }
            "sqrt" if self.rest.starts_with('[') => None,
            "sqrt" => Some(format!("√{}", bracketed(&self.argument()?))),
            "mathbb" => {
                let text = self.argument()?;
                text.chars().map(|c| mapped(DOUBLE_STRUCK, c)).collect::<Option<String>>().or(Some(text))
            }
            _ => None,
        }
    }
}

fn bracketed(text: &str) -> String {
    let text = text.trim();
    let whole =
        text.chars().all(|c| c.is_numeric() || c == '.') || text.chars().filter(|c| !is_script(*c)).count() <= 1;
    if whole { text.to_string() } else { format!("({text})") }
}

fn is_script(c: char) -> bool {
    let holds = |table: &str| table.chars().skip(1).step_by(2).any(|t| t == c);
    holds(SUPERSCRIPTS) || holds(SUBSCRIPTS) || ('\u{300}'..'\u{370}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_equations_can_be_read() {
        for (tex, shown) in [
            ("x^2 + y^2 = z^2", "x² + y² = z²"),
            ("a_{ij} \\le \\frac{1}{2}", "aᵢⱼ ≤ 1/2"),
            ("\\frac{a+b}{2c}", "(a+b)/(2c)"),
            ("\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}", "∑ᵢ₌₁ⁿ i = (n(n+1))/2"),
            ("\\sqrt{x} \\cdot \\sqrt{a^2+b^2}", "√x · √(a²+b²)"),
            ("e^{i\\pi} = -1", "e^(iπ) = -1"),
            ("f: \\mathbb{R} \\to \\mathbb{R}", "f: ℝ → ℝ"),
            ("\\left( \\hat{y} - y \\right)^2", "( ŷ - y )²".replace('ŷ', "y\u{302}").as_str()),
            ("P(A \\mid B) \\approx 0.5\\%", "P(A | B) ≈ 0.5%"),
            ("\\text{if } x > 0", "if x > 0"),
            ("\\log x, \\log_2 n", "log x, log₂ n"),
        ] {
            assert_eq!(unicode(tex).as_deref(), Some(shown), "{tex}");
        }
    }

    #[test]
    fn what_is_not_simple_stays_tex() {
        for tex in
            ["\\begin{matrix} 1 & 2 \\end{matrix}", "\\unknown{x}", "x^{2", "x}", "\\hat{xy}", "\\sqrt[3]{x}", "a^"]
        {
            assert_eq!(unicode(tex), None, "{tex}");
        }
        assert_eq!(unicode(&"{".repeat(100)), None);
    }

    #[test]
    fn prices_are_no_equations() {
        assert!(!is_equation("5-") && !is_equation("10 and then ") && !is_equation("30 to 40"));
        assert!(is_equation("x") && is_equation("2x") && is_equation("5 = x") && is_equation("\\alpha"));
        assert!(!is_equation("HOME and "), "variables of a shell neither");
    }
}
