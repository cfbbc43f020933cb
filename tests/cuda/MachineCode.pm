package MachineCode;

# What nvdisasm prints of a cubin, as kernels with blocks, loops and paths (docs/cuda-costs.md).
use strict;
use warnings;
use Exporter qw(import);
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of);
our @EXPORT_OK = qw(judged_of pass_line read_passes passes_in summary_of);

# ({kernel}: {name, blocks, base}) of a listing. A block is {number, instructions, next}; an instruction
# {op, mods, operands, calls}. `base` is where a kernel's arguments begin in the constant bank.
sub kernels_of {
  my ($listing) = @_;
  my (%sections, $section, %is_kernel, $architecture);
  for (split /\n/, $listing) {
    if (/^\s*\.section\s+\.text\.([^,\s]+)/) {
      $section = $sections{$1} = { name => $1, code => [], labels => {} };
    } elsif (/^\s*\.section\s/) {
      undef $section;
    } elsif (/^\s*\.target\s+sm_(\d+)/ || /EF_CUDA_SM(\d+)/) {
      $architecture //= $1;
    } elsif (!$section) {
      next;
    } elsif (/^([\w.\$]+):/) {
      $section->{labels}{$1} = scalar @{ $section->{code} };
    } elsif (/STO_CUDA_ENTRY/) {
      $is_kernel{ $section->{name} } = 1;
    } elsif (m{/\*[0-9a-f]{4,}\*/\s+(?:\@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)\s*(.*?)\s*;}) {
      my $i = { predicate => $1, op => $2, mods => $3, operands => $4 };
      # ptxas jumps far by calls of places that are no functions; such a call does not return.
      $i->{op} = 'BRA' if $i->{op} eq 'CALL' && $i->{operands} =~ /^`\(\.L/;
      push @{ $section->{code} }, $i;
    }
  }
  die "the listing names no architecture\n" unless $architecture;
  my $base = $architecture < 90 ? 0x160 : $architecture < 100 ? 0x210 : 0x380;
  my %kernels;
  for my $name (keys %is_kernel) {
    $kernels{$name} = { name => $name, base => $base, %{ blocks_of($sections{$name}) } };
  }
  return \%kernels;
}

sub targets_of {
  my ($i) = @_;
  return map { /^`?\(?([\w.\$]+)\)?$/ ? $1 : $_ } $i->{operands} =~ /`\(([\w.\$]+)\)/g unless $i->{op} =~ /^(?:BRX|JMX)/;
  my ($all) = $i->{operands} =~ /BRANCH_TARGETS\s+([^"]*)/;
  return defined $all ? $all =~ /([\w.\$]+)/g : ();
}

# Divides a section's instructions into blocks.
sub blocks_of {
  my ($section) = @_;
  my ($code, $labels) = @{$section}{qw(code labels)};
  my %starts = (0 => 1);
  $starts{$_} = 1 for values %$labels;
  for my $n (0 .. $#$code) {
    $starts{ $n + 1 } = 1 if $code->[$n]{op} =~ /^(?:BRA|BRX|JMP|JMX|EXIT|RET|BREAK|BSYNC)$/;
  }
  my @begins = sort { $a <=> $b } grep { $_ < @$code } keys %starts;
  my (@blocks, %number);
  for my $k (0 .. $#begins) {
    my $end = $k < $#begins ? $begins[ $k + 1 ] : @$code;
    push @blocks, { number => $k, instructions => [ @{$code}[ $begins[$k] .. $end - 1 ] ], next => [], first => $begins[$k] };
    $number{ $begins[$k] } = $k;
  }
  my %block_of = map { $_ => $number{ $labels->{$_} } } grep { defined $number{ $labels->{$_} } } keys %$labels;
  for my $block (@blocks) {
    my $last = $block->{instructions}[-1];
    my @next;
    if ($last->{op} =~ /^(?:BRA|BRX|JMP|JMX)$/) {
      @next = grep { defined } map { $block_of{$_} } targets_of($last);
    }
    # `BRA.U UP0, L` and `BRA P0, L` have their condition among the operands.
    my $conditional = $last->{predicate} || ($last->{op} eq 'BRA' && $last->{operands} =~ /^!?U?P[0-9]/);
    my $ends = $last->{op} =~ /^(?:BRA|BRX|JMP|JMX|EXIT|RET)$/ && !$conditional;
    push @next, $block->{number} + 1 if !$ends && $block->{number} < $#blocks;
    $block->{next} = \@next;
    $block->{ends} = $last->{op} =~ /^(?:EXIT|RET)$/ && !$last->{predicate};
    for my $i (@{ $block->{instructions} }) {
      next unless $i->{op} eq 'CALL';
      my ($target) = $i->{operands} =~ /`\(([\w.\$]+)\)/;
      $i->{calls} = $block_of{$target} if defined $target;
    }
  }
  return { blocks => \@blocks };
}

# ---- instructions ----

my %bytes_of_mod = (U8 => 1, S8 => 1, U16 => 2, S16 => 2, 64 => 8, 128 => 16, 256 => 32);

# Bytes that a thread moves by an access of memory.
sub width {
  my ($i) = @_;
  for (split /\./, $i->{mods}) {
    return $bytes_of_mod{$_} if $bytes_of_mod{$_};
  }
  return 4;
}
# By a generic address (LD, ST) functions for any type read, from arguments too: they are not judged.
sub is_load { return $_[0]{op} =~ /^(?:LDG|LDGSTS)$/ }
sub is_store { return $_[0]{op} =~ /^(?:STG|RED|REDG)$/ }
sub is_shared { return $_[0]{op} =~ /^(?:LDS|STS|LDSM|STSM)$/ }
sub is_barrier { return $_[0]{op} eq 'BAR' }

# (registers that are written, registers that are read); a register is "R4" or "UR4"
sub registers_of {
  my ($i) = @_;
  return @{$i}{qw(written read)} if $i->{written};
  my @operands = split /,\s*(?![^\[]*\])/, $i->{operands};
  my $stores = is_store($i) || $i->{op} =~ /^(?:STS|STL|STSM|ATOMS|BAR|LDGSTS)$/;
  my @written;
  if (!$stores && @operands && $operands[0] =~ /^(U?R)(\d+)/) {
    my ($kind, $first) = ($1, $2);
    my $count = $i->{op} =~ /^(?:LDG|LD|LDS|LDL|LDC|ULDC|LDCU)$/ ? width($i) / 4
      : $i->{op} eq 'LDSM' ? ($i->{mods} =~ /\.([24])$/ ? $1 : 1)
      : $i->{op} =~ /MMA$/ ? 4
      : $i->{op} eq 'CS2R' ? ($i->{mods} =~ /32/ ? 1 : 2)
      : $i->{op} =~ /^D(?:ADD|MUL|FMA)/ || $i->{mods} =~ /WIDE|\.64/ || ($i->{op} =~ /2F$/ && $i->{mods} =~ /^\.F64/) ? 2
      : 1;
    @written = map { $kind . ($first + $_) } 0 .. ($count < 1 ? 0 : $count - 1);
    shift @operands;
  }
  my @read;
  for (@operands) {
    while (/(?<![A-Za-z0-9_])(U?R)(\d+)(\S*)/g) {
      my ($kind, $first, $rest) = ($1, $2, $3);
      push @read, map { $kind . ($first + $_) } $rest =~ /^(?:\.reuse)?\.64/ ? (0, 1) : 0;
    }
  }
  if ($i->{op} =~ /^(?:STG|STS)$/ && @read && $read[-1] =~ /^(U?R)(\d+)/) {
    my ($kind, $first) = ($1, $2);
    push @read, map { $kind . ($first + $_) } 1 .. width($i) / 4 - 1;
  }
  @{$i}{qw(written read)} = (\@written, \@read);
  return (\@written, \@read);
}

# ---- loops ----

# By iteration: which blocks are on every way to a block.
sub dominators {
  my ($blocks, $entry) = @_;
  my (@order, %seen);
  my @stack = ([ $entry, 0 ]);
  $seen{$entry} = 1;
  while (@stack) {
    my $top = $stack[-1];
    my $next = $blocks->[ $top->[0] ]{next}[ $top->[1]++ ];
    if (!defined $next) {
      unshift @order, $top->[0];
      pop @stack;
    } elsif (!$seen{$next}++) {
      push @stack, [ $next, 0 ];
    }
  }
  my %place;
  @place{@order} = 0 .. $#order;
  my %before;
  for my $b (@order) {
    push @{ $before{$_} }, $b for @{ $blocks->[$b]{next} };
  }
  my %of = ($entry => $entry);
  for (my $changed = 1; $changed;) {
    $changed = 0;
    for my $b (@order) {
      next if $b == $entry;
      my $new;
      for my $p (grep { defined $of{$_} } @{ $before{$b} }) {
        my $other = $new // $p;
        $new = $p;
        while ($new != $other) {
          if ($place{$new} > $place{$other}) { $new = $of{$new} } else { $other = $of{$other} }
        }
      }
      next if defined $of{$b} && $of{$b} == $new;
      $of{$b} = $new;
      $changed = 1;
    }
  }
  return (\%of, \%before, \%place);
}

# Natural loops, inner ones first: {header, body, latches, inner}; `inner`: the loops right inside it. And those in no
# other loop, and each block's place in an order that has a block before what follows it.
sub loops_of {
  my ($blocks, $entry) = @_;
  my ($of, $before, $place) = dominators($blocks, $entry);
  my $dominates = sub {
    my ($a, $b) = @_;
    while ($b != $a) {
      return 0 if $b == $of->{$b};
      $b = $of->{$b};
    }
    return 1;
  };
  my %loops;
  for my $b (keys %$place) {
    for my $header (grep { $dominates->($_, $b) } @{ $blocks->[$b]{next} }) {
      my $loop = $loops{$header} //= { header => $header, body => { $header => 1 }, latches => {} };
      $loop->{latches}{$b} = 1;
      my @todo = ($b);
      while (@todo) {
        my $one = pop @todo;
        push @todo, @{ $before->{$one} // [] } unless $loop->{body}{$one}++;
      }
    }
  }
  my @loops = sort { keys %{ $a->{body} } <=> keys %{ $b->{body} } || $a->{header} <=> $b->{header} } values %loops;
  # Loops with different headers are one in the other or apart: the smallest that has a header has its whole loop.
  my %outer = map { $_->{header} => $_ } @loops;
  for my $loop (@loops) {
    $loop->{inner} = [ grep { defined } delete @outer{ grep { $_ != $loop->{header} && $outer{$_} } keys %{ $loop->{body} } } ];
  }
  return (\@loops, [ grep { $outer{ $_->{header} } } @loops ], $place);
}

# ---- paths ----

# How well a path fits elements of some bytes: bytes that accesses of their size, or of vectors, move.
sub fit {
  my ($i, $size) = @_;
  return -1 if $size == 2 && ($i->{op} eq 'HADD2' && $i->{mods} =~ /F32/ || $i->{op} eq 'F2FP' && $i->{mods} =~ /^\.F16/);  # f16: bf16 is judged
  return 0 unless (is_load($i) || is_store($i));
  my $width = width($i);
  return $width == $size || $width >= 16 ? $width : $width > $size && $width >= 8 && $size < 4 ? 0.5 : $width < $size ? 0.25 : 0.3;
}

# The best path through some blocks, from `entry` to one of `ends`: {instructions, fit}. Loops among them that are
# in `inner` (by header) count as one pass.
sub best_path {
  my ($kernel, $entry, $body, $ends, $inner, $size, $place) = @_;
  my $blocks = $kernel->{blocks};
  my %inside;  # block -> the header of the inner loop that it is in
  for my $loop (@$inner) {
    for my $b (keys %{ $loop->{body} }) {
      $inside{$b} = $loop->{header};
    }
  }
  my %loop_at = map { $_->{header} => $_ } @$inner;
  my %node = map { ($inside{$_} // $_) => 1 } keys %$body;
  my @order = sort { $place->{$a} <=> $place->{$b} } grep { defined $place->{$_} } keys %node;
  my %best = ($entry => { fit => 0, count => 0, loops => 0, from => undef });
  my $end;
  my %cost;
  for my $n (@order) {
    my $here = $best{$n} or next;
    my $own = $loop_at{$n} && $n != $entry ? $loop_at{$n}{path} : block_path($kernel, $n, $size);
    my $worth = $loop_at{$n} && $n != $entry ? $loop_at{$n}{worth} // 0 : 0;
    my %total = (fit => $here->{fit} + $own->{fit}, count => $here->{count} + @{ $own->{instructions} },
      loops => $here->{loops} + $worth);
    $cost{$n} = $own;
    my $here_too = $loop_at{$n} && $n != $entry ? $loop_at{$n}{body} : { $n => 1 };
    my (%targets, $is_end);
    for my $b (keys %$here_too) {
      $is_end = 1 if $ends->{$b};
      $targets{ $inside{$_} // $_ } = 1 for grep { $body->{$_} && !$here_too->{$_} } @{ $blocks->[$b]{next} };
    }
    my $better = sub {
      my ($old) = @_;
      return 1 unless $old;
      return ($total{loops} <=> $old->{loops} || $total{fit} <=> $old->{fit} || $old->{count} <=> $total{count}) > 0;
    };
    for my $t (keys %targets) {
      next if $t == $entry || $place->{$t} <= $place->{$n};
      $best{$t} = { %total, from => $n } if $better->($best{$t});
    }
    $end = { %total, at => $n } if $is_end && $better->($end);
  }
  return { instructions => [], fit => 0, nodes => [] } unless $end;
  my @nodes = ($end->{at});
  unshift @nodes, $best{ $nodes[0] }{from} while defined $best{ $nodes[0] }{from};
  return {
    instructions => [ map { @{ $cost{$_}{instructions} } } @nodes ],
    fit => $end->{fit},
    nodes => \@nodes
  };
}

# A block's instructions, with those of the functions that it calls.
sub block_path {
  my ($kernel, $number, $size) = @_;
  return $kernel->{block_path}{$number} if $kernel->{block_path}{$number};
  my (@all, $fit);
  $fit = 0;
  for my $i (@{ $kernel->{blocks}[$number]{instructions} }) {
    push @all, $i;
    $fit += fit($i, $size);
    next unless defined $i->{calls};
    my $called = called_path($kernel, $i->{calls}, $size);
    push @all, @{ $called->{instructions} };
    $fit += $called->{fit};
  }
  return $kernel->{block_path}{$number} = { instructions => \@all, fit => $fit };
}

sub called_path {
  my ($kernel, $entry, $size) = @_;
  return $kernel->{called}{$entry} if $kernel->{called}{$entry};
  $kernel->{called}{$entry} = { instructions => [], fit => 0 };  # of a recursion
  return $kernel->{called}{$entry} = whole_path($kernel, $entry, $size, {});
}

# The best path of a function, with its loops judged inside out: {instructions, fit, nodes, loops}
sub whole_path {
  my ($kernel, $entry, $size, $worths) = @_;
  my $blocks = $kernel->{blocks};
  my ($loops, $outer, $place) = @{ $kernel->{loops}{$entry} //= [ loops_of($blocks, $entry) ] };
  for my $loop (@$loops) {
    $loop->{path} = best_path($kernel, $loop->{header}, $loop->{body}, $loop->{latches}, $loop->{inner}, $size, $place);
    $loop->{worth} = $worths->{ $loop->{header} } // 0;
    if (!defined $worths->{ $loop->{header} }) {
      my %at = map { $_ => 1 } @{ $loop->{path}{nodes} };
      $loop->{worth} += $_->{worth} // 0 for grep { $at{ $_->{header} } } @{ $loop->{inner} };
    }
  }
  my %ends = map { $_ => 1 } grep { $blocks->[$_]{ends} } keys %$place;
  my $path = best_path($kernel, $entry, { map { $_ => 1 } keys %$place }, \%ends, $outer, $size, $place);
  return { %$path, loops => $loops, outer => $outer };
}

# ---- what a path does ----

# ---- addresses ----

# The low words of registers as sums: {name: factor}; '' names what is a number. Kinds of instructions that are not
# known give a name of their own.
my $unknown = 0;
sub form_of {
  my ($registers, $text) = @_;
  my $sign = $text =~ s/^-// ? -1 : 1;
  return { '' => $sign * hex $1 } if $text =~ /^0x([0-9a-f]+)$/;
  return {} if $text =~ /^U?RZ/;
  my $form = $text =~ /^(U?R\d+)/ ? $registers->{$1} //= { $1 => 1 }
    : $text =~ /^c\[0x0\]\[(.*)\]/ ? { "c$1" => 1 }
    : { 'v' . $unknown++ => 1 };
  return $sign == 1 ? $form : { map { $_ => -$form->{$_} } keys %$form };
}
sub sum_of {
  my %sum;
  for my $form (@_) {
    $sum{$_} += $form->{$_} for keys %$form;
  }
  return { map { $_ => $sum{$_} } grep { $sum{$_} } keys %sum };
}
sub scaled {
  my ($form, $factor) = @_;
  return { map { $_ => $factor * $form->{$_} } keys %$form };
}
sub number_of {
  my ($form) = @_;
  return !%$form ? 0 : keys %$form == 1 && defined $form->{''} ? $form->{''} : undef;
}
sub text_of_form { my ($form) = @_; return join '+', map { "$form->{$_}*$_" } sort keys %$form }

# What an instruction makes of the registers.
sub follow {
  my ($registers, $i) = @_;
  my ($written) = registers_of($i);
  return unless @$written;
  my ($op, $mods) = @{$i}{qw(op mods)};
  my (undef, @sources) = grep { !/^!?U?P(?:T|\d)/ } split /,\s*(?![^\[]*\])/, $i->{operands};
  my $value;
  if ($op =~ /^(?:U?MOV|R2UR)$/ || ($op eq 'IMAD' && $mods =~ /^\.MOV/)) {
    $value = form_of($registers, $sources[-1]);
  } elsif ($op =~ /^(?:U?IADD3?|VIADD|IADD)$/ && $mods !~ /\.X/) {
    $value = sum_of(map { form_of($registers, $_) } @sources);
  } elsif ($op =~ /^U?IMAD$/ && $mods !~ /\.(?:HI|X)/ && @sources >= 3) {
    my ($a, $b, $c) = map { form_of($registers, $_) } @sources;
    my ($x, $y) = (number_of($a), number_of($b));
    my $product = defined $x ? scaled($b, $x) : defined $y ? scaled($a, $y)
      : { join(' x ', sort map { '(' . text_of_form($_) . ')' } $a, $b) => 1 };
    $value = sum_of($product, $c);
  } elsif ($op =~ /^U?LEA$/ && $mods !~ /\.HI/ && @sources >= 3 && $sources[2] =~ /^0x/) {
    $value = sum_of(scaled(form_of($registers, $sources[0]), 2**hex $sources[2]), form_of($registers, $sources[1]));
  } elsif ($op =~ /^U?(?:SHF|SHL)$/ && $mods =~ /^(?:\.L|$)/ && $sources[1] =~ /^0x/) {
    $value = scaled(form_of($registers, $sources[0]), 2**hex $sources[1]);
  } elsif ($op =~ /^(?:U?LDCU?)$/) {
    $value = form_of($registers, $sources[0]);
  }
  $registers->{$_} = { 'v' . $unknown++ => 1 } for @$written;
  $registers->{ $written->[0] } = $value if $value && !$i->{predicate};
}

# The parts of an access's address that are not elements: pointers, which have the factor 1.
sub address_of {
  my ($registers, $i) = @_;
  my ($place) = $i->{operands} =~ /.*\[([^\[\]]*)\]/;
  my $form = sum_of(map { form_of($registers, $_) } split /\+/, $place // '');
  my @parts = grep { $_ ne '' && $form->{$_} == 1 } sort keys %$form;
  return (@parts ? \@parts : [ grep { $_ ne '' } sort keys %$form ], text_of_form($form));
}

# Addresses of which one has all parts of the other are of one array: {parts, bytes}
sub add_to_stream {
  my ($streams, $kind, $parts, $bytes) = @_;
  for my $stream (@$streams) {
    next unless $stream->{kind} eq $kind;
    my ($few, $many) = @$parts < @{ $stream->{parts} } ? ($parts, $stream->{parts}) : ($stream->{parts}, $parts);
    my %has = map { $_ => 1 } @$many;
    next if grep { !$has{$_} } @$few;
    $stream->{parts} = $few;
    $stream->{bytes} += $bytes;
    return;
  }
  push @$streams, { kind => $kind, parts => $parts, bytes => $bytes };
}

# Bytes that a thread has asked for and not yet got, at the most, in repeated passes.
sub in_flight {
  my ($path, $repeats) = @_;
  my (@outstanding, @group, @groups);
  my ($bytes, $most, $loads, $most_loads) = (0, 0, 0, 0);
  my $drop = sub { my ($one) = @_; $bytes -= $one->{bytes}; $loads--; };
  for (1 .. ($repeats ? 2 : 1)) {
    for my $i (@$path) {
      my ($written, $read) = registers_of($i);
      my %touched = map { $_ => 1 } @$written, @$read;
      my $last = -1;
      for my $n (0 .. $#outstanding) {
        $last = $n if grep { $touched{$_} } @{ $outstanding[$n]{registers} };
      }
      $drop->($_) for splice @outstanding, 0, $last + 1;
      if ($i->{op} eq 'LDGSTS') {
        my $one = { bytes => width($i) };
        push @group, $one;
        ($bytes, $loads) = ($bytes + $one->{bytes}, $loads + 1);
      } elsif (is_load($i)) {
        push @outstanding, { registers => $written, bytes => width($i) };
        ($bytes, $loads) = ($bytes + width($i), $loads + 1);
      } elsif ($i->{op} eq 'LDGDEPBAR') {
        push @groups, [ splice @group ];
      } elsif ($i->{op} eq 'DEPBAR' && $i->{operands} =~ /SB0,\s*(0x[0-9a-f]+)/) {
        while (@groups > hex $1) {
          $drop->($_) for @{ shift @groups };
        }
      }
      ($most, $most_loads) = ($bytes, $loads) if $bytes > $most;
    }
  }
  return ($most, $most_loads);
}

# {header, instructions, loads, load_bytes, stores, store_bytes, shared, barriers, flight, flight_loads, streams}
sub figures_of {
  my ($kernel, $path, $repeats, $size) = @_;
  my @code = @{ $path->{instructions} };
  my %f = map { $_ => 0 } qw(loads load_bytes stores store_bytes shared barriers);
  $f{instructions} = @code;
  my %registers;
  follow(\%registers, $_) for @{ $kernel->{ahead} };
  my (@streams, %same);
  for my $i (@code) {
    $f{shared}++ if is_shared($i);
    $f{barriers}++ if is_barrier($i);
    my $kind = is_load($i) ? 'load' : is_store($i) ? 'store' : '';
    if ($kind) {
      $f{"${kind}s"}++;
      $f{"${kind}_bytes"} += width($i);
      my ($parts, $address) = address_of(\%registers, $i);
      add_to_stream(\@streams, $kind, $parts, width($i)) unless $same{"$kind $address"}++;
    }
    follow(\%registers, $i);
  }
  $f{path} = \@code;
  @f{qw(flight flight_loads)} = in_flight(\@code, $repeats);
  $f{streams} = \@streams;
  # The elements of an array; arrays may have elements of several sizes, and some have one for a whole row.
  my $most = largest(map { $_->{bytes} } @streams);
  my $least = $most;
  for (@streams) {
    $least = $_->{bytes} if $_->{bytes} < $least && $_->{bytes} * 4 > $most;
  }
  $f{elements} = $least / $size;
  return \%f;
}

sub largest { my $most = 0; for (@_) { $most = $_ if $_ > $most } return $most }

# Blocks that are on every way to one, in order.
sub blocks_ahead {
  my ($of, $header) = @_;
  my @ahead;
  for (my $b = $header; $of->{$b} != $b;) {
    $b = $of->{$b};
    unshift @ahead, $b;
  }
  return @ahead;
}

# A loop that does for few elements what another one does for more of them at once: what is left at the end.
sub is_rest_of {
  my ($one, $other) = map { $_->{figures} } @_;
  return 0 if $other->{elements} <= $one->{elements};
  for (qw(load_bytes store_bytes)) {
    return 0 if !$one->{$_} != !$other->{$_};
    return 0 if $one->{$_} && $other->{$_} % $one->{$_} != 0;
  }
  return 1;
}

# Bytes of an element: 2 where a kernel takes them (bf16 is what is trained), else those of its name.
sub element_size {
  my ($kernel) = @_;
  for my $block (@{ $kernel->{blocks} }) {
    return 2 if grep { (is_load($_) || is_store($_)) && width($_) == 2 } @{ $block->{instructions} };
  }
  return $kernel->{name} =~ /f16/ ? 2 : $kernel->{name} =~ /64$/ ? 8 : 4;
}

# What is judged of a kernel: {size, outside, passes}. `passes`: the loops with accesses of global memory that the best
# path has one after the other, or all of it where no loop has any. `outside`: instructions beside them. `size`: bytes
# of an element.
sub judge_kernel {
  my ($kernel) = @_;
  my $size = element_size($kernel);
  return { size => $size, outside => 0, passes => [] }
    unless grep { grep { is_load($_) || is_store($_) } @{ $_->{instructions} } } @{ $kernel->{blocks} };
  my $whole = whole_path($kernel, 0, $size, {});
  my ($of) = dominators($kernel->{blocks}, 0);
  my $has_access = sub { scalar grep { (is_load($_) || is_store($_)) } @{ $_[0]{instructions} } };
  my @loops = grep { $has_access->($_->{path}) } @{ $whole->{loops} };
  @loops = grep { my $one = $_; !grep { $_ != $one && $one->{body}{ $_->{header} } } @loops } @loops;  # innermost
  for my $loop (@loops) {
    $kernel->{ahead} = [ map { @{ $kernel->{blocks}[$_]{instructions} } } blocks_ahead($of, $loop->{header}) ];
    $loop->{figures} = figures_of($kernel, $loop->{path}, 1, $size);
    $loop->{matched} = grep { (is_load($_) || is_store($_)) && (width($_) == $size || width($_) >= 8) }
      @{ $loop->{path}{instructions} };
  }
  my @matched = grep { $_->{matched} } @loops;
  @loops = @matched if @matched;
  my @kept = grep { my $one = $_; !grep { $_ != $one && is_rest_of($one, $_) } @loops } @loops;
  my %worths = map { $_->{header} => 0 } @loops;
  $worths{ $_->{header} } = 1e6 + 1e3 / (1 + $_->{figures}{instructions} / ($_->{figures}{elements} || 1)) for @kept;
  my $path = whole_path($kernel, 0, $size, \%worths);
  my %taken;
  my @todo = ([ $path->{nodes}, $path->{outer} ]);
  while (@todo) {
    my ($nodes, $inner) = @{ pop @todo };
    my %at = map { $_ => 1 } @$nodes;
    for my $loop (grep { $at{ $_->{header} } } @$inner) {
      $taken{ $loop->{header} } = 1;
      push @todo, [ $loop->{path}{nodes}, $loop->{inner} ];
    }
  }
  my @passes = map { { header => $_->{header}, %{ $_->{figures} } } } sort { $a->{header} <=> $b->{header} } grep { $taken{ $_->{header} } } @kept;
  my $outside = @{ $path->{instructions} };
  $outside -= $_->{instructions} for @passes;
  if (!@passes) {
    $kernel->{ahead} = [];
    my $figures = figures_of($kernel, $path, 0, $size);
    ($outside, @passes) = (0, $figures) if $figures->{loads} + $figures->{stores};
  }
  return { size => $size, outside => $outside < 0 ? 0 : $outside, passes => \@passes };
}

# ---- the table ----

my @measures = qw(elements instructions loads load_bytes stores store_bytes flight shared barriers);

# {kernel}: what judge_kernel says of each kernel of a cubin
sub judged_of {
  my ($nvdisasm, $cubin) = @_;
  my $listing = `'$nvdisasm' '$cubin'`;
  die "$nvdisasm does not read $cubin\n" if $? != 0;
  my $kernels = kernels_of($listing);
  my %judged = map { $_ => judge_kernel($kernels->{$_}) } keys %$kernels;
  return \%judged;
}

# "2 177 | 2 51 2 4 0 0 2 0 0 | ...": bytes of an element, instructions beside the passes, and each pass.
sub pass_line {
  my ($judged) = @_;
  return join ' | ', "$judged->{size} $judged->{outside}", map { my $p = $_; join ' ', map { $p->{$_} } @measures } @{ $judged->{passes} };
}
sub passes_in {
  my ($line) = @_;
  my ($first, @passes) = split / \| /, $line;
  my ($size, $outside) = split ' ', $first;
  return { size => $size, outside => $outside, passes => [ map { my %p; @p{@measures} = split; \%p } @passes ] };
}

# ({kernel}{architecture}: line; the release of nvcc)
sub read_passes {
  my ($file) = @_;
  my (%lines, $release);
  for (split /\n/, text_of($file)) {
    $release = $1 if /^# nvcc ([\d.]+)/;
    next if /^#/ || !/\S/;
    my ($name, $architecture, $line) = /^(\w+) (\w+) (\d+ \d+(?: \| [\d.]+(?: \d+){8})*)$/
      or die "$file: '$_' is not a line of the table (expected a kernel, an architecture, 2 numbers, and 9 for each pass)\n";
    $lines{$name}{$architecture} = $line;
  }
  die "$file: it does not say which nvcc has written it (expected '# nvcc RELEASE')\n" unless $release;
  return (\%lines, $release);
}

# Of all passes: instructions for each element, bytes of each load and of each store, and the fewest bytes in flight
# of those that load.
sub summary_of {
  my ($line) = @_;
  my %sum = (instructions => 0);
  my ($loads, $stores, %bytes) = (0, 0);
  for my $p (@{ passes_in($line)->{passes} }) {
    $sum{instructions} += $p->{instructions} / ($p->{elements} || 1);
    $loads += $p->{loads};
    $stores += $p->{stores};
    $bytes{$_} += $p->{$_} for qw(load_bytes store_bytes);
    $sum{flight} = $p->{flight} if $p->{loads} && (!defined $sum{flight} || $p->{flight} < $sum{flight});
  }
  return { flight => 0, %sum, load => $loads ? $bytes{load_bytes} / $loads : 0, store => $stores ? $bytes{store_bytes} / $stores : 0 };
}

1;
