export module tessera.base:text;

import :standard;

export namespace tessera {

/// The entry of `known` nearest to `name` by edit distance, or "" if none is near enough to be
/// meant.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

/// "; did you mean 'x'?" or "", for the end of an error's text.
std::string did_you_mean(std::string_view name, std::span<const std::string> known);

/// "1.5 MiB".
std::string format_bytes(std::uint64_t bytes);
/// "65.5 kFLOP", "4.20 TFLOP".
std::string format_flops(double flops);

/// Text within a page of HTML or a picture of SVG, in an attribute too: what has a meaning there is
/// written as an entity.
std::string escape_markup(std::string_view text);

/// "a, b and c".
std::string join_words(std::span<const std::string> words);

/// Whether a qualified name matches a pattern: `*` within a part, `**` over parts, {a,b}
/// alternatives, "." the empty name (the whole model). Throws Error (input) when braces do not
/// pair.
bool matches_pattern(std::string_view name, std::string_view pattern);

/// All patterns that {a,b} groups stand for. Throws Error (input) when braces do not pair.
std::vector<std::string> expand_braces(std::string_view pattern);

}  // namespace tessera
