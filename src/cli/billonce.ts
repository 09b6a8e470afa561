#!/usr/bin/env node
/**
 * The `billonce` command: for people at a terminal, over a journal. What it can do is program.ts's.
 */
import { run } from './program.ts'

process.exitCode = await run(process.argv)
