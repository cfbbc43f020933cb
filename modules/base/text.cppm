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
/// 803 k, 6.1 M, 1.24 B.
std::string format_count(double count);

/// 0.4 s, 58 s, 2:05, 1:02:03.
std::string format_duration(double seconds);

/// Text within a page of HTML or a picture of SVG, in an attribute too: what has a meaning there is
/// written as an entity.
std::string escape_markup(std::string_view text);

/// "a, b and c".
std::string join_words(std::span<const std::string> words);
/// "1 rank", "3 ranks": a count of things whose plural ends in s.
std::string count_text(std::int64_t count, std::string_view thing);
/// "0, 1, 3"; of more than 16, runs as "0 to 255" and at most 16 of them.
std::string list_numbers(std::span<const int> numbers);
/// "rank 2", "ranks 0, 1 and 3": things by their numbers; many as in list_numbers.
std::string numbers_text(std::string_view thing, std::span<const int> numbers);

/// Whether a qualified name matches a pattern: `*` within a part, `**` over parts, {a,b}
/// alternatives, "." the empty name (the whole model). Throws Error (input) when braces do not
/// pair.
bool matches_pattern(std::string_view name, std::string_view pattern);

/// All patterns that {a,b} groups stand for. Throws Error (input) when braces do not pair.
std::vector<std::string> expand_braces(std::string_view pattern);

}  // namespace tessera
