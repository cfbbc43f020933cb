export module tessera.coded:code_type;

import tessera.base;

export namespace tessera::coded {

/// How the elements of a weight's rows are stored. q...: in blocks, as ggml has them.
enum class CodeType : std::uint8_t {
  f16,
  bf16,
  int8,  // 8 bits, and one scale (f32) for each row
  q4_0,
  q4_1,
  q5_0,
  q8_0,
  q4_k,
  q5_k,
  q6_k,
  mxfp4  // 4 bits that are floating point numbers
};

/// Of the name of a stored type, as TensorSource::stored_type has it ("Q4_K", "bfloat16"); none:
/// such elements are no codes.
std::optional<CodeType> code_type(std::string_view stored_type);
/// How many elements of a row are coded together.
std::int64_t block_of(CodeType type);
/// The bytes of so many elements of a row, a multiple of the block.
std::int64_t bytes_of(CodeType type, std::int64_t elements);

/// What products with codes compute with on their other side, the rows of x.
enum class Activations : std::uint8_t {
  f32,   // x as it is, with decoded weights
  int8,  // 8 bits and a scale for each 32 elements, with the codes themselves: sums of integers
};
/// The names of both on a command line, in their order.
std::span<const std::string_view> activations_names();
/// Error (input): there is no such name.
Activations activations_named(std::string_view name);
/// Whether weights of the type are integers, so that products of integers can be made with them.
bool is_integer(CodeType type);

/// In which form a model that is not trained keeps the weights of its linear layers and
/// embeddings.
enum class WeightForm : std::uint8_t {
  stored,  // as they are stored
  f32,
  bf16,
  int8,
  q8_0,
  q4_0,
  q4_k,
  q6_k
};
/// The names of all on a command line, in their order.
std::span<const std::string_view> weight_form_names();
/// Error (input): there is no such name.
WeightForm weight_form_named(std::string_view name);

/// The form of a weight [rows, columns]; none: it stays as it is. Rows that are not whole blocks
/// have the form that ggml's programs give them: Q8_0 for Q6_K, Q5_0 for Q4_K; bf16 for all others.
/// `of_tokens`: it embeds tokens, or makes their logits, of which four bits would lose more: Q6_K
/// then. With WeightForm::stored, `stored` is the result.
std::optional<CodeType> code_type_for(WeightForm form, std::int64_t columns, bool of_tokens,
                                      std::optional<CodeType> stored);

}  // namespace tessera::coded
