/**
 * Loaded into each worker before its own code: ends it when the demo is gone, however that ended. A worker that was left
 * behind would go on asking a receiver that is not there.
 */
process.once('disconnect', () => process.exit())
// The channel is no reason to stay when the work is done.
process.channel?.unref()
