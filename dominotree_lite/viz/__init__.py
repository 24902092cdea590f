"""Pictures of trees and results. The core never imports this."""
