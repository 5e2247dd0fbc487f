//! Just enough Markdown: a title, `##` sections, fenced blocks.
//!
//! A document keeps its prose as it is and prints back to the same text, but for white space at
//! the ends of blocks. So blessing rewrites expectations and touches nothing else.

/// A fenced block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Block {
    /// First word after the fence.
    /// The stage, `run` or `error`; of a first block the level of its program.
    pub language: String,
    /// The other words after the fence.
    pub settings: Vec<String>,
    pub text: String,
    /// Line of the opening fence, from one.
    pub line: usize,
    /// Sections before it.
    pub(crate) section: usize,
}

/// A file: prose and blocks in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Document {
    pub title: String,
    pub blocks: Vec<Block>,
    /// Prose before each block, and after the last.
    prose: Vec<String>,
}

impl Document {
    /// Reads a document. Fails if a block does not end or the first line is no title; a fence is
    /// three backticks at the start of a line.
    pub fn parse(text: &str) -> Result<Document, String> {
        let mut doc = Document {
            title: String::new(),
            blocks: Vec::new(),
            prose: Vec::new(),
        };
        let mut prose = String::new();
        let mut section = 0;
        let mut lines = text.lines().enumerate();
        while let Some((k, line)) = lines.next() {
            let Some(fence) = line.strip_prefix("```") else {
                if doc.title.is_empty() {
                    // Only a first line can be the title: an empty one is refused below.
                    doc.title = line.strip_prefix("# ").unwrap_or("").to_string();
                }
                section += line.starts_with("## ") as usize;
                prose.push_str(line);
                prose.push('\n');
                continue;
            };
            let mut words = fence.split_whitespace().map(str::to_string);
            let mut block = Block {
                language: words.next().unwrap_or_default(),
                settings: words.collect(),
                text: String::new(),
                line: k + 1,
                section,
            };
            loop {
                match lines.next() {
                    Some((_, "```")) => break,
                    Some((_, l)) => {
                        block.text.push_str(l);
                        block.text.push('\n');
                    }
                    None => return Err(format!("the block of line {} does not end", k + 1)),
                }
            }
            doc.prose.push(std::mem::take(&mut prose));
            doc.blocks.push(block);
        }
        doc.prose.push(prose);
        if doc.title.is_empty() {
            Err("the first line is no `# ` header".into())
        } else {
            Ok(doc)
        }
    }

    /// Ranges of blocks that belong to one test: a section's.
    /// Sections without blocks do not appear.
    pub fn sections(&self) -> Vec<std::ops::Range<usize>> {
        let mut out: Vec<std::ops::Range<usize>> = Vec::new();
        for (k, b) in self.blocks.iter().enumerate() {
            match out.last_mut() {
                Some(r) if self.blocks[r.start].section == b.section => r.end = k + 1,
                _ => out.push(k..k + 1),
            }
        }
        out
    }

    /// Returns the document as Markdown.
    pub fn print(&self) -> String {
        let mut out = String::new();
        // There is one more prose than blocks: the one at the end.
        for (prose, b) in self.prose.iter().zip(&self.blocks) {
            out.push_str(prose);
            let settings: String = b.settings.iter().map(|s| format!(" {s}")).collect();
            out.push_str(&format!("```{}{settings}\n", b.language));
            let text = b.text.trim_end();
            if !text.is_empty() {
                out.push_str(text);
                out.push('\n');
            }
            out.push_str("```\n");
        }
        out.push_str(self.prose.last().map_or("", |p| p));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_reads_back() {
        let text = "# A title.\n\nWhy.\n\n```graph\ng\n```\n\n## One\n```loops\nl\n```\nmore\n```run s0=3 plain\n```\nend\n";
        let doc = Document::parse(text).unwrap();
        assert_eq!(doc.print(), text);
        assert_eq!(doc.sections(), vec![0..1, 1..3]);
        assert_eq!(doc.blocks[2].settings, ["s0=3", "plain"]);
        assert!(Document::parse("# T.\n```graph\n").is_err());
        assert!(Document::parse("no title\n").is_err());
    }
}
