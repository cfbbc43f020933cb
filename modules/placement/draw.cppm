export module tessera.placement:draw;

import tessera.base;
import :layout;

export namespace tessera {

/// Which rank holds which part of a tensor of `shape`, as text: for a tensor of one or two dims a
/// picture of its boxes with the ranks in them, then a line for each rank with its coordinates and
/// ranges. Ranks that hold copies are separated by commas, ranks that hold terms by the reduction's
/// sign: "0+1" is the sum of what ranks 0 and 1 hold.
/// Error (input): the layout shards a dim that the tensor lacks.
std::string draw_text(const Layout& layout, const Dims& shape);

/// The layout as an SVG picture (one file's content). A tensor of more than two dims is shown by
/// the two dims that are sharded first, or its last two; all others are named in the caption.
std::string draw_svg(const Layout& layout, const Dims& shape);

}  // namespace tessera
