// The table of a data file's parts, in its header's __metadata__: what a rank needs to find its
// parts, without parsing the JSON of all others.
module tessera.checkpoint:table;

import tessera.base;
import tessera.placement;

namespace tessera::checkpoint_detail {

struct TableRow {
  std::size_t tensor = 0;  // its number among the index's names, in their order
  LocalPart box;
  std::uint64_t begin = 0;  // of its bytes, in the file's data
  std::string_view hashes;  // 32 digits for each chunk of its bytes
};

/// "TENSOR OFFSETS SHAPE BEGIN HASHES;" for each row: "17 0,0 16,8192 1048576 9f86...;".
std::string table_text(const std::vector<TableRow>& rows);
/// Its rows, whose hashes are in the text; nothing when the text is not such a table.
std::optional<std::vector<TableRow>> table_rows(std::string_view text);

/// The name of the table in __metadata__.
inline constexpr const char* table_name = "parts";
/// The table in a header's JSON, which begins with it; nothing when it does not.
std::optional<std::string_view> table_in(std::string_view header);

}  // namespace tessera::checkpoint_detail
