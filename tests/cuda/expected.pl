#!/usr/bin/env perl
# How long an H100 should take for each operator of a training step, derived from the machine code of its kernels
# (plugins/cuda/passes.table, kernels.table) and from their launches (docs/cuda-costs.md). Nothing here is measured.
#   expected.pl write TABLE KERNELS PASSES LIST...     writes plugins/cuda/expected.table
#   expected.pl compare TABLE KERNELS PASSES LIST...   fails where the launches or times of the lists are not the table's
#   expected.pl compare TABLE KERNELS PASSES           fails where the times are not what kernels and launches give
#   expected.pl verdicts TABLE KERNELS PASSES          each operator beside its bound, and which miss the aims
# `compare` also fails where a call's kernels are above 1.3 times its bound of bytes without a reason in reasons.table,
# which is beside TABLE, and on a reason whose call is not.
# LIST: what `tessera graph roofline PROGRAM --measure cuda:0` writes with TESSERA_LOG=debug and with
# TESSERA_EMULATOR_LAUNCHES=/dev/stderr (docs/emulator.md).
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../support";
use Files qw(text_of write_file);
use MachineCode qw(read_passes passes_in);

# An H100 with HBM3. The bandwidth is what copies reach of the published 3.35 TB/s, as in `graph roofline`; latencies
# are published measurements of memory and of its second cache, with some load; half of that cache keeps what every
# processor reads.
my %gpu = (
  processors => 132, schedulers => 4, clock => 1.755e9, bandwidth => 2.85e12, launch => 2.8e-6, latency => 600 / 1.755e9,
  cache_latency => 270 / 1.755e9, cache_bandwidth => 5.5e12, cached => 25e6, warps => 64, blocks => 32, registers => 65536, shared => 227 * 1024,
);
my $architecture = '90a';
my $library = qr/^(?:b?mm|matmul|linear|scaled_linear|causal_attention|attention_block|grouped)/;  # of cuBLASLt and cuDNN
my $beside_library = qr/^scaled_linear/;  # of which the launches of our own are beside the library's

# {kernel}: {registers, shared} on that architecture
sub read_kernels {
  my ($file) = @_;
  my %kernels;
  for (split /\n/, text_of($file)) {
    next if /^#/ || !/\S/;
    my ($name, @numbers) = split;
    $kernels{$name} = { registers => $numbers[3], shared => $numbers[4] };
  }
  return \%kernels;
}

# Blocks of a kernel that a multiprocessor has at once.
sub blocks_at_once {
  my ($kernel, $threads) = @_;
  my $warps = int(($threads + 31) / 32);
  my $each = int(($kernel->{registers} * 32 + 255) / 256) * 256 * $warps;
  my $most = $gpu{blocks};
  for (int($gpu{warps} / $warps), $each ? int($gpu{registers} / $each) : $most, int($gpu{shared} / ($kernel->{shared} + 1024))) {
    $most = $_ if $_ < $most;
  }
  return $most || 1;
}

# Seconds of a launch for so many elements: (seconds, what limits it). bytes: of memory; cached: of the second cache.
sub seconds_of {
  my ($kernel, $passes, $one, $elements, $bytes, $cached) = @_;
  my ($blocks, $threads) = @$one{qw(blocks threads)};
  my $at_once = blocks_at_once($kernel, $threads);
  my $used = $blocks < $gpu{processors} ? $blocks : $gpu{processors};
  my $running = $blocks < $at_once * $gpu{processors} ? $blocks : $at_once * $gpu{processors};
  my $rounds = $blocks / $running;
  my $last = $rounds == int $rounds ? 1 : (int($rounds) + 1) / $rounds;  # the last round has fewer blocks
  my $instructions = $passes->{outside} * $blocks * $threads;
  my $waiting = 0;
  my $first = 1;
  for my $p (@{ $passes->{passes} }) {
    my $times = $elements / ($p->{elements} || 1);
    $instructions += $times * $p->{instructions};
    my $at_a_time = $running * $threads * $p->{flight};
    $waiting += $times * $p->{load_bytes} / $at_a_time * ($first ? $gpu{latency} : $gpu{cache_latency}) if $at_a_time;
    $first = 0;
  }
  my $memory = $bytes / $gpu{bandwidth};
  my $of_cache = ($bytes + $cached) / $gpu{cache_bandwidth};
  my %seconds = (
    issue => $last * $instructions / 32 / ($used * $gpu{schedulers} * $gpu{clock}),
    latency => $last * $waiting,
    memory => $memory > $of_cache ? $memory : $of_cache,
  );
  my ($limit) = sort { $seconds{$b} <=> $seconds{$a} || $a cmp $b } keys %seconds;
  return ($seconds{$limit}, $limit);
}

# Bytes that a kernel moves, and loads, for an element: of the pass that has most of them.
sub bytes_of_element {
  my ($p) = @_;
  my ($moved, $loaded) = (0, 0);
  for (@{ $p->{passes} }) {
    next unless $_->{elements};
    my $each = ($_->{load_bytes} + $_->{store_bytes}) / $_->{elements};
    $moved = $each if $each > $moved;
    $loaded = $_->{load_bytes} / $_->{elements} if $_->{load_bytes} / $_->{elements} > $loaded;
  }
  return ($moved, $loaded);
}

# Of an operator's launches, those that go through its elements (main), and those that join what they have left, such as
# the sums of parts: fewer elements where a launch says its rows; else it has less than half of the largest one's threads,
# and goes through a value for each block of that one. (seconds, what limits it, blocks, seconds between launches)
sub expected_of {
  my ($kernels, $passes, $one) = @_;
  return beside_library($kernels, $passes, $one) if $one->{op} =~ $beside_library;
  my @launches = @{ $one->{launches} };
  my ($largest) = sort { $b->{blocks} * $b->{threads} <=> $a->{blocks} * $a->{threads} } @launches;
  my ($most) = sort { $b <=> $a } map { $_->{elements} } @launches;
  my $is_main = sub {
    my ($l) = @_;
    return 2 * $l->{blocks} * $l->{threads} >= $largest->{blocks} * $largest->{threads}
      && ($l->{elements} == 0 || 2 * $l->{elements} >= $most);
  };
  my $joined = sub { return $_[0]{elements} && 2 * $_[0]{elements} < $most ? $_[0]{elements} : $largest->{blocks} };
  my $partials = 0;  # bytes that main launches leave
  my @main = grep { $is_main->($_) } @launches;
  for my $l (grep { !$is_main->($_) } @launches) {
    my $line = $passes->{ $l->{kernel} }{$architecture};
    $partials += $joined->($l) * (bytes_of_element(passes_in($line)))[1] if $line && $l->{elements};
  }
  my ($sum, $most_blocks, $read, %limits) = (0, 0, 0);
  for my $l (@launches) {
    my $main = $is_main->($l);
    my ($kernel, $line) = ($kernels->{ $l->{kernel} }, $passes->{ $l->{kernel} }{$architecture});
    die "$one->{op}: the kernel $l->{kernel} has no line in kernels.table\n" unless $kernel;
    $most_blocks = $l->{blocks} if $main && $l->{blocks} > $most_blocks;
    my ($seconds, $limit) = ($main ? $one->{bytes} / $gpu{bandwidth} : 0, 'memory');
    if ($line) {
      my $p = passes_in($line);
      my ($own, $loaded) = bytes_of_element($p);
      my $elements = $main ? $one->{elements} : $joined->($l);
      my ($bytes, $cached) = $main ? ($one->{bytes} + $partials, 0) : (0, $own * $elements);
      # Of a table, only some rows are moved; and each of several launches moves what its own passes move.
      $elements = $one->{bytes} / $own if $main && $own && $elements > $one->{bytes} / $p->{size};
      $bytes = $own * $elements if @main > 1 && $main && $own * $elements < $bytes;
      # What the launch before has read is in the cache.
      ($bytes, $cached) = ($bytes - $read, $read) if $main && $read && $read <= $gpu{cached} && $read < $bytes;
      $read = $loaded * $elements if $main;
      ($seconds, $limit) = seconds_of($kernel, $p, $l, $elements, $bytes, $cached);
    }
    $sum += $seconds;
    $limits{$limit} += $seconds;
  }
  my $between = (@launches - 1) * $gpu{launch};
  my ($limit) = sort { $limits{$b} <=> $limits{$a} || $a cmp $b } keys %limits;
  return ($sum + $between, $limit, $most_blocks, $between);
}

# What our own launches, which copy codes of a byte, add to a product of the library. Their passes count words.
sub beside_library {
  my ($kernels, $passes, $one) = @_;
  my ($sum, $limit) = (0);
  for my $l (@{ $one->{launches} }) {
    die "$one->{op} $one->{elements}: $l->{kernel} computes it, not the library\n" if $l->{kernel} ne 'turn_codes';
    my $p = passes_in($passes->{ $l->{kernel} }{$architecture});
    (my $seconds, $limit) = seconds_of($kernels->{ $l->{kernel} }, $p, $l, $one->{elements} / $p->{size}, 2 * $one->{elements}, 0);
    $sum += $seconds + $gpu{launch};
  }
  return ($sum, $limit, $one->{launches}[0]{blocks}, 0);
}

# Times the bound of bytes: of all, and of the kernels without what is between them.
sub ratios_of {
  my ($kernels, $passes, $one) = @_;
  my ($seconds, undef, $blocks, $between) = expected_of($kernels, $passes, $one);
  my $bound = $one->{bytes} / $gpu{bandwidth};
  return ($seconds / $bound, ($seconds - $between) / $bound, $blocks);
}
my $aim = 1.3;
my $judged_bytes = 1 << 20;  # what a launch costs is longer than fewer

# {"operator elements"}: why its kernels are above the aim
sub read_reasons {
  my ($table) = @_;
  my %reasons;
  my $file = $table =~ s![^/]*$!reasons.table!r;
  for (split /\n/, text_of($file)) {
    next if /^#/ || !/\S/;
    die "$file: '$_' is not a line of the table (expected OPERATOR ELEMENTS: REASON)\n" unless /^(\w+ \d+): (\S.*)$/;
    $reasons{$1} = $2;
  }
  return \%reasons;
}

# Calls that miss the aim without a reason, and reasons without such a call.
sub problems_of_reasons {
  my ($kernels, $passes, $table, $reasons) = @_;
  my (@problems, %needed);
  for my $key (sort keys %$table) {
    my $one = $table->{$key};
    my $name = "$one->{op} $one->{elements}";
    my (undef, $ratio) = ratios_of($kernels, $passes, $one);
    next if $one->{bytes} < $judged_bytes || $ratio <= $aim || $one->{op} =~ $beside_library;
    $needed{$name} = 1;
    push @problems, sprintf "%s: its kernels take %.2f times its bound of bytes (at most %.1f); make them faster, or say why in reasons.table\n",
      $name, $ratio, $aim unless $reasons->{$name};
  }
  push @problems, map { "reasons.table has '$_', whose kernels are not above $aim times their bound of bytes: remove the line\n" }
    grep { !$needed{$_} } sort keys %$reasons;
  return @problems;
}

# {key}: {op, elements, bytes, launches}, of what a list says
sub read_list {
  my ($file, $all) = @_;
  my ($one, $calls);
  for (split /\n/, text_of($file)) {
    if (/measures (\w+): (\d+) elements, (\d+) bytes/) {
      my ($op, $elements, $bytes) = ($1, $2, $3);
      undef $one;
      next if ($op =~ $library && $op !~ $beside_library) || $bytes == 0 || $all->{"$op $elements $bytes"};
      $one = { op => $op, elements => $elements, bytes => $bytes, launches => [] };
      $all->{"$op $elements $bytes"} = $one;
    } elsif ($one && /^launch (\w+) (\d+) (\d+) (\d+)$/) {
      push @{ $one->{launches} }, { kernel => $1, blocks => $2, threads => $3, elements => $4 };
    }
  }
  die "$file: it names no operator\n" unless %$all;
  return $all;
}

# The call is made six times: once, and five times.
sub once {
  my ($one) = @_;
  my @all = map { "$_->{kernel} $_->{blocks} $_->{threads} $_->{elements}" } @{ $one->{launches} };
  my $each = @all / 6;
  die "$one->{op}: " . @all . " launches (expected those of 6 calls)\n" if $each != int $each;
  die "$one->{op}: its calls differ in their launches: @all\n" if join(',', @all) ne join(',', (@all[ 0 .. $each - 1 ]) x 6);
  $one->{launches} = [ @{ $one->{launches} }[ 0 .. $each - 1 ] ];
}

sub line_of {
  my ($kernels, $passes, $one) = @_;
  my ($seconds, $limit) = expected_of($kernels, $passes, $one);
  return sprintf "%s %d %d %s%.3g %s | %s\n", $one->{op}, $one->{elements}, $one->{bytes}, $one->{op} =~ $beside_library ? '+' : '', 1e6 * $seconds, $limit,
    join ' | ', map { "$_->{kernel} $_->{blocks} $_->{threads} $_->{elements}" } @{ $one->{launches} };
}

# {key}: {op, elements, bytes, microseconds, limit, launches, line}
sub read_expected {
  my ($file) = @_;
  my %all;
  for (split /\n/, text_of($file)) {
    next if /^#/ || !/\S/;
    my ($first, @launches) = split / \| /;
    my ($op, $elements, $bytes, $microseconds, $limit) = split ' ', $first;
    die "$file: '$_' is not a line of the table\n" unless defined $limit && @launches;
    $all{"$op $elements $bytes"} = { op => $op, elements => $elements, bytes => $bytes, microseconds => $microseconds, limit => $limit, line => "$_\n",
      launches => [ map { my %l; @l{qw(kernel blocks threads elements)} = split; \%l } @launches ] };
  }
  return \%all;
}

my ($task, $file, $kernels_file, $passes_file, @lists) = @ARGV;
die "usage: expected.pl write|compare|verdicts TABLE KERNELS PASSES [LIST...]\n"
  unless defined $passes_file && $task =~ /^(?:write|compare|verdicts)$/ && ($task ne 'write' || @lists);
my ($kernels, $passes) = (read_kernels($kernels_file), (read_passes($passes_file))[0]);
my $found = {};
read_list($_, $found) for @lists;
for (sort keys %$found) {
  once($found->{$_});
  delete $found->{$_} unless @{ $found->{$_}{launches} };
}
my $write = "  ./dev cmake --build build/release --target write_expected_table\n";
if ($task eq 'write') {
  write_file($file, "# operator, elements, bytes, expected microseconds on an H100 (+: beside the library's), what limits it | kernel, blocks, threads, elements of rows (or 0) | ...\n"
    . "# Derived from machine code by tests/cuda/expected.pl (docs/cuda-costs.md); nothing of it is measured.\n"
    . join '', map { line_of($kernels, $passes, $found->{$_}) } sort keys %$found);
  print "$file: ", scalar(keys %$found), " operators\n";
} elsif ($task eq 'compare') {
  my $table = read_expected($file);
  my @problems;
  for my $key (sort keys %$found) {
    my $was = $table->{$key};
    my $line = line_of($kernels, $passes, $found->{$key});
    push @problems, "$key: " . ($was ? "the table has\n  $was->{line}and it is\n  $line" : "it is not in the table\n") if !$was || $was->{line} ne $line;
  }
  for my $key (sort keys %$table) {
    my $line = line_of($kernels, $passes, $table->{$key});
    push @problems, "the table has\n  $table->{$key}{line}and kernels give\n  $line" if $line ne $table->{$key}{line};
  }
  my @reasons = problems_of_reasons($kernels, $passes, $table, read_reasons($file));
  die @reasons if @reasons && !@problems;
  die @problems, @reasons, "Write the table anew (minutes: it captures the steps) and commit it:\n", $write if @problems;
  print scalar(keys %$table), ' operators in the table', (@lists ? ', ' . keys(%$found) . ' in the lists' : ''), "\n";
} else {
  my $table = read_expected($file);
  my $reasons = read_reasons($file);
  my (@slow, @several, @narrow);
  printf "%-46s %10s %10s %7s %7s %8s %s\n", 'operator, elements', 'bound us', 'expected', 'ratio', 'kernels', 'blocks', 'limited by';
  for my $key (sort { $table->{$b}{microseconds} <=> $table->{$a}{microseconds} } grep { !/$beside_library/ } keys %$table) {
    my $one = $table->{$key};
    my ($ratio, $of_kernels, $blocks) = ratios_of($kernels, $passes, $one);
    my $name = "$one->{op} $one->{elements}";
    my $text = sprintf "%-46s %10.2f %10.2f %7.2f %7.2f %8d %s", $name, 1e6 * $one->{bytes} / $gpu{bandwidth}, $one->{microseconds}, $ratio,
      $of_kernels, $blocks, $one->{limit};
    print "$text\n";
    next if $one->{bytes} < $judged_bytes;
    push @slow, "$text\n    " . ($reasons->{$name} // 'no reason') if $of_kernels > $aim;
    push @several, $text if $ratio > $aim && $of_kernels <= $aim;
    push @narrow, $text if 2 * $blocks < $gpu{processors};
  }
  print "\nkernels above $aim times the bound of bytes: ", scalar(@slow), "\n", map { "  $_\n" } @slow;
  print "\nabove it only by further launches: ", scalar(@several), "\n", map { "  $_\n" } @several;
  print "\non fewer than half of the processors: ", scalar(@narrow), "\n", map { "  $_\n" } @narrow;
  print problems_of_reasons($kernels, $passes, $table, $reasons);
}
