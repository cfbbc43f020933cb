#!/usr/bin/env perl
# How long an H100 should take for each operator of a training step, derived from the machine code of its kernels
# (plugins/cuda/passes.table, kernels.table) and from their launches (docs/cuda-costs.md). Nothing here is measured.
#   expected.pl write TABLE KERNELS PASSES LIST...     writes plugins/cuda/expected.table
#   expected.pl compare TABLE KERNELS PASSES LIST...   fails where the launches or times of the lists are not the table's
#   expected.pl compare TABLE KERNELS PASSES           fails where the times are not what kernels and launches give
#   expected.pl verdicts TABLE KERNELS PASSES          each operator beside its bound, and which miss the aims
# LIST: what `tessera graph roofline PROGRAM --measure cuda:0` writes with TESSERA_LOG=debug and with
# TESSERA_EMULATOR_LAUNCHES=/dev/stderr (docs/emulator.md).
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../support";
use Files qw(text_of write_file);
use MachineCode qw(read_passes passes_in);

# An H100 with HBM3. The bandwidth is what copies reach of the published 3.35 TB/s, as in `graph roofline`; latencies
# are published measurements of memory and of its second cache, with some load.
my %gpu = (
  processors => 132, schedulers => 4, clock => 1.755e9, bandwidth => 2.85e12, launch => 2.8e-6, latency => 600 / 1.755e9,
  cache_latency => 270 / 1.755e9, warps => 64, blocks => 32, registers => 65536, shared => 227 * 1024,
);
my $architecture = '90a';
my $library = qr/^(?:b?mm|matmul|linear|scaled_linear|causal_attention|attention_block|grouped)/;  # of cuBLASLt and cuDNN

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

# Seconds of a launch for so many elements, of which so many bytes are moved: (seconds, what limits it).
sub seconds_of {
  my ($kernel, $passes, $blocks, $threads, $elements, $bytes) = @_;
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
  my %seconds = (
    issue => $last * $instructions / 32 / ($used * $gpu{schedulers} * $gpu{clock}),
    latency => $last * $waiting,
    memory => $bytes / $gpu{bandwidth},
  );
  my ($limit) = sort { $seconds{$b} <=> $seconds{$a} || $a cmp $b } keys %seconds;
  return ($seconds{$limit}, $limit);
}

# Of an operator's launches, those that have at least half of the threads of the largest one go through its elements;
# the others through a value for each block of that one.
sub expected_of {
  my ($kernels, $passes, $one) = @_;
  my @launches = @{ $one->{launches} };
  my ($largest) = sort { $b->{blocks} * $b->{threads} <=> $a->{blocks} * $a->{threads} } @launches;
  my ($sum, %limits) = (0);
  my @main = grep { 2 * $_->{blocks} * $_->{threads} >= $largest->{blocks} * $largest->{threads} } @launches;
  my $most_blocks = 0;
  for my $l (@launches) {
    my $main = grep { $_ == $l } @main;
    my ($kernel, $line) = ($kernels->{ $l->{kernel} }, $passes->{ $l->{kernel} }{$architecture});
    die "$one->{op}: the kernel $l->{kernel} has no line in kernels.table\n" unless $kernel;
    $most_blocks = $l->{blocks} if $main && $l->{blocks} > $most_blocks;
    my ($seconds, $limit) = ($main ? $one->{bytes} / $gpu{bandwidth} : 0, 'memory');
    if ($line) {
      my $p = passes_in($line);
      my $elements = $main ? $one->{elements} : $largest->{blocks};
      my $bytes = $main ? $one->{bytes} : 0;
      my $own = 0;  # bytes that it moves for an element
      for (@{ $p->{passes} }) {
        my $each = $_->{elements} ? ($_->{load_bytes} + $_->{store_bytes}) / $_->{elements} : 0;
        $own = $each if $each > $own;
      }
      # Of a table, only some rows are moved; and each of several launches moves what its own passes move.
      $elements = $bytes / $own if $main && $own && $elements > $bytes / $p->{size};
      $bytes = $own * $elements if @main > 1 && $main && $own * $elements < $bytes;
      ($seconds, $limit) = seconds_of($kernel, $p, $l->{blocks}, $l->{threads}, $elements, $bytes);
    }
    $sum += $seconds;
    $limits{$limit} += $seconds;
  }
  $sum += (@launches - 1) * $gpu{launch};
  my ($limit) = sort { $limits{$b} <=> $limits{$a} || $a cmp $b } keys %limits;
  return ($sum, $limit, $most_blocks);
}

# {key}: {op, elements, bytes, launches}, of what a list says
sub read_list {
  my ($file, $all) = @_;
  my ($one, $calls);
  for (split /\n/, text_of($file)) {
    if (/measures (\w+): (\d+) elements, (\d+) bytes/) {
      undef $one;
      next if $1 =~ $library || $3 == 0 || $all->{"$1 $2 $3"};
      $one = { op => $1, elements => $2, bytes => $3, launches => [] };
      $all->{"$1 $2 $3"} = $one;
    } elsif ($one && /^launch (\w+) (\d+) (\d+)$/) {
      push @{ $one->{launches} }, { kernel => $1, blocks => $2, threads => $3 };
    }
  }
  die "$file: it names no operator\n" unless %$all;
  return $all;
}

# The call is made six times: once, and five times.
sub once {
  my ($one) = @_;
  my @all = map { "$_->{kernel} $_->{blocks} $_->{threads}" } @{ $one->{launches} };
  my $each = @all / 6;
  die "$one->{op}: " . @all . " launches (expected those of 6 calls)\n" if $each != int $each;
  die "$one->{op}: its calls differ in their launches: @all\n" if join(',', @all) ne join(',', (@all[ 0 .. $each - 1 ]) x 6);
  $one->{launches} = [ @{ $one->{launches} }[ 0 .. $each - 1 ] ];
}

sub line_of {
  my ($kernels, $passes, $one) = @_;
  my ($seconds, $limit) = expected_of($kernels, $passes, $one);
  return sprintf "%s %d %d %.3g %s | %s\n", $one->{op}, $one->{elements}, $one->{bytes}, 1e6 * $seconds, $limit,
    join ' | ', map { "$_->{kernel} $_->{blocks} $_->{threads}" } @{ $one->{launches} };
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
      launches => [ map { my %l; @l{qw(kernel blocks threads)} = split; \%l } @launches ] };
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
  write_file($file, "# operator, elements, bytes, expected microseconds on an H100, what limits it | kernel, blocks, threads | ...\n"
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
  die @problems, "Write the table anew (minutes: it captures the steps) and commit it:\n", $write if @problems;
  print scalar(keys %$table), ' operators in the table', (@lists ? ', ' . keys(%$found) . ' in the lists' : ''), "\n";
} else {
  my $table = read_expected($file);
  my (@slow, @narrow);
  printf "%-46s %10s %10s %7s %8s %s\n", 'operator, elements', 'bound us', 'expected', 'ratio', 'blocks', 'limited by';
  for my $key (sort { $table->{$b}{microseconds} <=> $table->{$a}{microseconds} } keys %$table) {
    my $one = $table->{$key};
    my $bound = 1e6 * $one->{bytes} / $gpu{bandwidth};
    my (undef, undef, $blocks) = expected_of($kernels, $passes, $one);
    my $ratio = $one->{microseconds} / $bound;
    my $text = sprintf "%-46s %10.2f %10.2f %7.2f %8d %s", "$one->{op} $one->{elements}", $bound, $one->{microseconds}, $ratio, $blocks, $one->{limit};
    print "$text\n";
    next if $one->{bytes} < 1 << 20;  # what a launch costs is longer
    push @slow, $text if $ratio > 1.3;
    push @narrow, $text if 2 * $blocks < $gpu{processors};
  }
  print "\nabove 1.3 times the bound of bytes: ", scalar(@slow), "\n", map { "  $_\n" } @slow;
  print "\non fewer than half of the processors: ", scalar(@narrow), "\n", map { "  $_\n" } @narrow;
}
